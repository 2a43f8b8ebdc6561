// Templates with the JavaScript SDK, unmodified: it sends bodies in chunks and uploads all archives at once.
import assert from 'node:assert/strict'
import { mkdtempSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { Sandbox, Template } from 'e2b'

const name = `e2e-js-${Math.random().toString(36).slice(2, 12)}`
const context = mkdtempSync(join(tmpdir(), 'cloister-templates-'))
const size = { cpuCount: 1, memoryMB: 512 }

const api = (method, path) =>
  fetch(process.env.E2B_API_URL + path, { method, headers: { 'X-API-Key': process.env.E2B_API_KEY } })

async function says(ref, command) {
  const box = await Sandbox.create(ref, { timeoutMs: 60_000 })
  try {
    return (await box.commands.run(command)).stdout
  } finally {
    await box.kill()
  }
}

after(async () => {
  rmSync(context, { recursive: true })
  for (const suffix of ['', '-child', '-bad']) await api('DELETE', `/templates/${name}${suffix}`)
})

test('a template with files is built, found and used', async () => {
  mkdirSync(join(context, 'folder'))
  for (let i = 0; i < 30; i++) writeFileSync(join(context, 'folder', `${i}.txt`), `${name} ${i}\n`)
  symlinkSync('0.txt', join(context, 'folder', 'link'))
  let recipe = Template({ fileContextPath: context }).fromTemplate('base').setWorkdir('/app').copy('folder', 'all')
  for (let i = 0; i < 30; i++) recipe = recipe.copy(`folder/${i}.txt`, `/each/${i}`)
  const lines = []
  const info = await Template.build(recipe.runCmd('cat all/link > first'), name, {
    ...size,
    onBuildLogs: (line) => lines.push(line.message),
  })
  assert.equal(info.name, name)
  assert.ok(lines.some((line) => line.includes('Build finished')), lines.join('\n'))
  assert.equal(await Template.exists(name), true)
  assert.equal(await Template.exists(`${name}-nope`), false)
  assert.equal(await says(name, 'pwd; cat first /each/29'), `/app\n${name} 0\n${name} 29\n`)
})

test('tags are given and taken', async () => {
  const { buildId, tags } = await Template.assignTags(`${name}:default`, ['v1', 'stable'])
  assert.deepEqual(tags.sort(), ['stable', 'v1'])
  assert.deepEqual((await Template.getTags(name)).map((row) => [row.tag, row.buildId]), [
    ['default', buildId],
    ['stable', buildId],
    ['v1', buildId],
  ])
  await Template.removeTags(name, 'stable')
  assert.equal(await says(`${name}:v1`, 'cat first'), `${name} 0\n`)
  await assert.rejects(Sandbox.create(`${name}:stable`), /does not exist/)
  for (const tag of [':invalid-tag', 'name:', '']) await assert.rejects(Template.assignTags(name, tag))
})

test('a build in the background can be watched', async () => {
  const info = await Template.buildInBackground(Template().fromTemplate(name).runCmd('sleep 1'), `${name}-child`, size)
  let status = await Template.getBuildStatus(info)
  assert.equal(status.status, 'building')
  while (status.status === 'building') status = await Template.getBuildStatus(info)
  assert.equal(status.status, 'ready')
  assert.equal(await says(`${name}-child`, 'cat /app/first'), `${name} 0\n`)
})

test('what is wrong with a recipe is said', async () => {
  const bad = [
    [Template().fromTemplate('base').runCmd('exit 5'), /exit status 5/],
    [Template().fromTemplate('base').runCmd('whoami', { user: 'root123' }), /invalid username: 'root123'/],
    [Template().fromTemplate(`${name}-nope`), /not found/],
  ]
  for (const [recipe, message] of bad) await assert.rejects(Template.build(recipe, `${name}-bad`, size), message)
})

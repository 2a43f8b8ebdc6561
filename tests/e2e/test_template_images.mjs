// A template from an image, by the JavaScript SDK. test_template_images.py starts it: NAME and the login are its arguments.
import assert from 'node:assert'
import { Sandbox, Template } from 'e2b'

const [name, privateImage, username, password] = process.argv.slice(2)

async function build(template, alias) {
  const lines = []
  await Template.build(template, alias, { cpuCount: 1, memoryMB: 512, onBuildLogs: (line) => lines.push(line.message) })
  return lines
}

async function says(alias, command) {
  const sandbox = await Sandbox.create(alias, { timeoutMs: 60_000 })
  try {
    return (await sandbox.commands.run(command)).stdout
  } finally {
    await sandbox.kill()
  }
}

await build(Template().fromImage('ubuntu:22.04').runCmd('cat /srv/was-file/inside > ~/seen'), name)
assert.equal(await says(name, 'cat ~/seen'), 'inside\n')

await build(Template().fromPythonImage('3'), `${name}-python`)
assert.equal(await says(`${name}-python`, 'cat /srv/zstd'), 'from zstd\n')

await build(Template().skipCache().fromImage(privateImage, { username, password }), `${name}-private`)
assert.equal(await says(`${name}-private`, 'cat /srv/was-file/inside'), 'inside\n')

await assert.rejects(
  build(Template().skipCache().fromImage(privateImage, { username, password: 'wrong' }), `${name}-denied`),
  (error) => error.name === 'BuildError' && error.message.includes(`access denied to '${privateImage}'`)
)
await assert.rejects(
  build(Template().skipCache().fromImage('ubuntu:99.99'), `${name}-missing`),
  (error) => error.name === 'BuildError' && error.message.includes("image 'ubuntu:99.99' not found")
)
console.log('done')

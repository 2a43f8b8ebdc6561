// The JavaScript code interpreter in domain mode: nothing but the pasted lines without the URLs. Releases from 1.5 on.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

const options = { timeout: 60_000 }
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
let sandbox

// Until the port inside is open.
async function get(url, headers = {}, tries = 100) {
  for (; ; tries--) {
    const answer = await fetch(url, { headers })
    if (answer.status !== 502 || tries <= 0) return answer
    await sleep(100)
  }
}

before(async () => {
  assert.equal(process.env.E2B_SANDBOX_URL, undefined)
  assert.equal(process.env.E2B_API_URL, undefined)
  sandbox = await Sandbox.create('base', { timeoutMs: 300_000 })
})
after(async () => { await sandbox?.kill() })

test('code, files and commands', options, async () => {
  await sandbox.runCode('x = 20')
  const result = await sandbox.runCode("print('hi'); x + 22")
  assert.equal(result.text, '42')
  assert.deepEqual(result.logs.stdout, ['hi\n'])
  await sandbox.files.write('note', 'written')
  assert.equal(await sandbox.files.read('note'), 'written')
  assert.equal((await sandbox.commands.run('cat note')).stdout, 'written')
})

test('a large file arrives whole', options, async () => {
  const content = 'x'.repeat(5_000_000)
  await sandbox.files.write('large.txt', content)
  assert.equal((await sandbox.files.read('large.txt')).length, content.length)
})

test('a port is at its https name', options, async () => {
  await sandbox.commands.run('python3 -m http.server 8000 --bind 127.0.0.1', { background: true })
  const host = sandbox.getHost(8000)
  assert.equal(host, `8000-${sandbox.sandboxId}.${process.env.E2B_DOMAIN}`)
  assert.equal((await get(`https://${host}/`)).status, 200)
})

test('signed links are https', options, async (t) => {
  if (!sandbox.downloadUrl) return t.skip('not in this release')
  await sandbox.files.write('linked', 'by link')
  const link = await sandbox.downloadUrl('linked')
  assert.ok(link.startsWith(`https://49983-${sandbox.sandboxId}.${process.env.E2B_DOMAIN}/files?`), link)
  if (link.includes('signature=')) assert.equal(await (await fetch(link)).text(), 'by link')
})

test('a private sandbox wants its traffic token', options, async (t) => {
  const box = await Sandbox.create('base', { network: { allowPublicTraffic: false } })
  try {
    if (!box.trafficAccessToken) return t.skip('not in this release')
    await box.commands.run('python3 -m http.server 8000', { background: true })
    const url = `https://${box.getHost(8000)}/`
    assert.equal((await get(url)).status, 403)
    assert.equal((await get(url, { 'e2b-traffic-access-token': box.trafficAccessToken })).status, 200)
    assert.equal((await box.runCode('40 + 2')).text, '42')
  } finally {
    await box.kill()
  }
})

// @mastra/e2b: its sandbox by hand. Most checks use a sandbox that it finds by its metadata, as a second process of an
// application does.
import { equal, match, ok } from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { E2BSandbox } from '@mastra/e2b'
import { Sandbox } from 'e2b'
import { check, done, fetchHost, running, waitFor } from './checks.mjs'

let sandbox
const id = `check-${randomUUID()}`
const run = (command, args, options) => sandbox.executeCommand(command, args, options)

await check('create from its own template', async () => {
  const own = new E2BSandbox({ id: `own-${id}` })
  await own.start()
  await own.destroy()
})
await check('create from a template by name', async () => {
  const own = new E2BSandbox({ id: `base-${id}`, template: 'base' })
  await own.start()
  await own.destroy()
})
await check('find a running sandbox', async () => {
  const made = await Sandbox.create('base', { timeoutMs: 300_000, metadata: { 'mastra-sandbox-id': id } })
  sandbox = new E2BSandbox({ id, template: 'base', env: { GREETING: 'hello' } })
  await sandbox._start()
  equal(sandbox.e2b.sandboxId, made.sandboxId)
}, { vital: true })
await check('run a command', async () => {
  const result = await run('sh', ['-c', 'echo $GREETING; echo err >&2'])
  equal(`${result.exitCode} ${result.stdout} ${result.stderr}`, '0 hello\n err\n')
})
await check('exit code', async () => equal((await run('sh', ['-c', 'exit 3'])).exitCode, 3))
await check('streamed output', async () => {
  let seen = ''
  await run('sh', ['-c', 'echo a; echo b'], { onStdout: (text) => (seen += text) })
  equal(seen, 'a\nb\n')
})
await check('files', async () => {
  await sandbox.writeFiles([{ path: '/home/user/new/a.txt', content: 'one\n' }])
  equal((await run('cat', ['/home/user/new/a.txt'])).stdout, 'one\n')
  equal((await sandbox.e2b.files.list('/home/user/new')).map((entry) => entry.name).join(), 'a.txt')
})
await check('background process with input', async () => {
  const process = await sandbox.processes.spawn('read line; echo got $line; sleep 100')
  await process.sendStdin('text\n')
  await waitFor(() => process.stdout === 'got text\n')
  ok((await sandbox.processes.list()).some((one) => one.pid === process.pid))
  await process.kill()
  await waitFor(async () => !(await sandbox.processes.list()).some((one) => one.pid === process.pid))
})
await check('timeout', async () => {
  const result = await run('sleep', ['30'], { timeout: 1000 }).catch((error) => ({ success: false, error }))
  ok(!result.success, JSON.stringify(result))
})
await check('server with a URL', async () => {
  await sandbox.processes.spawn('python3 -m http.server 8000 --directory /home/user')
  match(await fetchHost(new URL(await sandbox.networking.getPortUrl(8000)).host), /new/)
})
await check('stop and start again', async () => {
  const before = sandbox.e2b.sandboxId
  await sandbox._stop() // as a workspace does it: stop() alone leaves its status, and the next start() does nothing
  await sandbox._start()
  equal(sandbox.e2b.sandboxId, before)
})
await check('kill', async () => {
  const before = sandbox.e2b.sandboxId
  await sandbox.destroy()
  await waitFor(async () => !(await running()).includes(before))
})
done()

// @computesdk/e2b, as the provider of computesdk.
import { equal, match, ok } from 'node:assert/strict'
import { e2b } from '@computesdk/e2b'
import { compute } from 'computesdk'
import { check, done, fetchHost, running, waitFor } from './checks.mjs'

let sandbox
const run = (command, options) => sandbox.runCommand(command, options)

await check('create', async () => {
  compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) })
  sandbox = await compute.sandbox.create({ envs: { GREETING: 'hello' } })
}, { vital: true })
await check('run a command', async () => {
  const result = await run('echo $GREETING; echo err >&2')
  equal(`${result.exitCode} ${result.stdout} ${result.stderr}`, '0 hello\n err\n')
})
await check('exit code', async () => equal((await run('exit 3')).exitCode, 3))
await check('directory and environment', async () => {
  const result = await run("sh -c 'pwd; echo $WORD'", { cwd: '/tmp', env: { WORD: 'given' } })
  equal(result.stdout, '/tmp\ngiven\n', JSON.stringify(result))
})
await check('run code', async () => equal((await run("python3 - <<'PY'\nprint(6 * 7)\nPY")).stdout, '42\n'))
await check('files', async () => {
  await sandbox.filesystem.mkdir('/home/user/new')
  await sandbox.filesystem.writeFile('/home/user/new/a.txt', 'one\n')
  equal(await sandbox.filesystem.readFile('/home/user/new/a.txt'), 'one\n')
  equal((await sandbox.filesystem.readdir('/home/user/new')).map((entry) => entry.name).join(), 'a.txt')
  ok(await sandbox.filesystem.exists('/home/user/new/a.txt'))
  await sandbox.filesystem.remove('/home/user/new/a.txt')
  ok(!(await sandbox.filesystem.exists('/home/user/new/a.txt')))
})
await check('server in the background', async () => {
  await run('python3 -m http.server 8000 --directory /home/user', { background: true })
  const url = await sandbox.getUrl({ port: 8000, protocol: 'http' })
  match(await fetchHost(new URL(url).host), /new/)
})
await check('timeout', async () => {
  const result = await run('sleep 30', { timeout: 1000 })
  match(`${result.exitCode} ${result.stderr}`, /127 .*timed? ?out/i)
})
await check('find it again', async () => {
  const again = await compute.sandbox.getById(sandbox.sandboxId)
  equal((await again.runCommand('ls /home/user')).stdout, 'new\n')
  ok((await compute.sandbox.list()).some((one) => one.sandboxId === sandbox.sandboxId))
})
await check('snapshots', async () => {
  ok((await compute.snapshot.create(sandbox.sandboxId, { name: 'kept' })).id)
})
await check('kill', async () => {
  await sandbox.destroy()
  await waitFor(async () => !(await running()).includes(sandbox.sandboxId))
})
done()

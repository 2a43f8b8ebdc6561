// @e2b/cli: the commands that a person types, with their output and exit codes.
import { equal, match, ok } from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { check, done, running } from './checks.mjs'

const manifest = createRequire(import.meta.url).resolve('@e2b/cli/package.json')
const program = join(dirname(manifest), 'dist', 'index.js')
const home = mkdtempSync(join(tmpdir(), 'e2b-cli-'))
process.on('exit', () => rmSync(home, { recursive: true, force: true }))

// Its standard output, standard error and exit code; `input` is piped in.
function e2b(args, input = '') {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [program, ...args], {
      cwd: home,
      env: { ...process.env, HOME: home, NO_COLOR: '1', CI: '1' },
      timeout: 50_000,
    })
    const result = { out: '', err: '' }
    child.stdout.on('data', (piece) => (result.out += piece))
    child.stderr.on('data', (piece) => (result.err += piece))
    child.on('error', reject)
    child.on('close', (code) => resolve({ ...result, code }))
    child.stdin.on('error', () => {}) // it may end before it has read all
    child.stdin.end(input)
  })
}

// The same for a command that must work.
async function works(args, input) {
  const result = await e2b(args, input)
  if (result.code !== 0) throw new Error(`e2b ${args.join(' ')}: exit code ${result.code}: ${result.err || result.out}`)
  return result.out + result.err
}

let id
await check('create', async () => {
  id = (await works(['sandbox', 'create', 'base', '--detach', '--timeout', '300'])).match(/\bi[a-z0-9]{20}\b/)[0]
  ok((await running()).includes(id))
}, { vital: true })
await check('list', async () => {
  const rows = JSON.parse((await e2b(['sandbox', 'list', '--format', 'json'])).out)
  ok(rows.some((row) => row.sandboxId === id))
})
await check('info', async () => match(await works(['sandbox', 'info', id]), new RegExp(id)))
await check('run a command', async () => {
  const result = await e2b(['sandbox', 'exec', id, 'echo out; echo err >&2'])
  equal(`${result.code} ${result.out}`, '0 out\n')
  match(result.err, /err\n/)
})
await check('exit code', async () => equal((await e2b(['sandbox', 'exec', id, 'exit 3'])).code, 3))
await check('user, directory and environment', async () => {
  const result = await e2b(['sandbox', 'exec', '-u', 'root', '-c', '/tmp', '-e', 'A=b', id, 'whoami; pwd; echo $A'])
  equal(result.out, 'root\n/tmp\nb\n', result.err)
})
await check('piped input', async () => equal((await e2b(['sandbox', 'exec', id, 'wc -l'], 'a\nb\n')).out.trim(), '2'))
await check('background command', async () => {
  await works(['sandbox', 'exec', '-b', id, 'sleep 100'])
  match((await e2b(['sandbox', 'exec', id, 'pgrep -fa "^sleep"'])).out, /sleep 100/)
})
await check('logs', async () => match(await works(['sandbox', 'logs', id]), /sleep 100|Logs for sandbox/))
await check('metrics', async () => match(await works(['sandbox', 'metrics', id]), /CPU|metrics/i))
await check('list templates', async () => match(await works(['template', 'list']), /base/))
await check('build a template', async () => {
  writeFileSync(join(home, 'e2b.Dockerfile'), 'FROM e2bdev/base\nRUN true\n')
  await works(['template', 'create', 'check-clients'])
})
await check('pause', async () => {
  await works(['sandbox', 'pause', id])
  await works(['sandbox', 'resume', id])
})
await check('snapshots', async () => void (await works(['sandbox', 'snapshot', 'create', id])))
await check('kill', async () => {
  await works(['sandbox', 'kill', id])
  ok(!(await running()).includes(id))
})
done()

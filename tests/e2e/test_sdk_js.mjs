// The JavaScript SDK, unmodified, on Node. run.py starts the server and sets the three variables.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import {
  AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError,
  SandboxNotFoundError, TimeoutError,
} from 'e2b'

const options = { timeout: 60_000 }
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const secondsUntil = (date) => (new Date(date) - Date.now()) / 1000

async function withSandbox(how, use) {
  const sandbox = await Sandbox.create(how)
  try {
    return await use(sandbox)
  } finally {
    await sandbox.kill()
  }
}

describe('commands', options, () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create({ timeoutMs: 300_000 }) })
  after(async () => { await sandbox.kill() })

  test('a command gives its output and exit code', async () => {
    const result = await sandbox.commands.run('echo out; echo err >&2')
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  })

  test('a command that fails throws with all it said', async () => {
    await assert.rejects(sandbox.commands.run('echo out; exit 3'), (error) => {
      assert.ok(error instanceof CommandExitError)
      assert.deepEqual([error.exitCode, error.stdout], [3, 'out\n'])
      return true
    })
  })

  test('env, cwd and user are what was asked for', async () => {
    const asked = { envs: { FOO: 'bar' }, cwd: '/tmp', user: 'root' }
    const result = await sandbox.commands.run('echo $FOO; pwd; whoami', asked)
    assert.equal(result.stdout, 'bar\n/tmp\nroot\n')
    assert.equal((await sandbox.commands.run('echo $FOO; pwd; whoami')).stdout, '\n/home/user\nuser\n')
  })

  test('callbacks get output as it comes', async () => {
    const seen = []
    await sandbox.commands.run('echo one; sleep 1; echo two', { onStdout: (text) => seen.push([text, Date.now()]) })
    assert.deepEqual(seen.map(([text]) => text), ['one\n', 'two\n'])
    assert.ok(seen[1][1] - seen[0][1] > 500)
  })

  test('a background command is listed, connected to, and killed', async () => {
    const handle = await sandbox.commands.run('sleep 100', { background: true })
    assert.ok((await sandbox.commands.list()).some((process) => process.pid === handle.pid))
    const again = await sandbox.commands.connect(handle.pid)
    assert.equal(again.pid, handle.pid)
    assert.equal(await sandbox.commands.kill(handle.pid), true)
    assert.equal(await sandbox.commands.kill(handle.pid), false)
    await assert.rejects(handle.wait(), CommandExitError)
    await assert.rejects(again.wait(), CommandExitError)
  })

  test('input reaches a command', async () => {
    const handle = await sandbox.commands.run('read line; echo got $line', { background: true, stdin: true })
    await sandbox.commands.sendStdin(handle.pid, 'hello\n')
    assert.equal((await handle.wait()).stdout, 'got hello\n')
  })

  test('a command past its timeout throws', async () => {
    await assert.rejects(sandbox.commands.run('sleep 30', { timeoutMs: 1000 }), TimeoutError)
  })

  test('megabytes of output arrive whole', async () => {
    const result = await sandbox.commands.run("head -c 4000000 /dev/zero | tr '\\0' x")
    assert.equal(result.stdout, 'x'.repeat(4_000_000))
  })
})

describe('files', options, () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create({ timeoutMs: 300_000 }) })
  after(async () => { await sandbox.kill() })

  test('what is written is read back, in every format', async () => {
    const info = await sandbox.files.write('hello.txt', 'Grüße')
    assert.equal(info.path, '/home/user/hello.txt')
    assert.equal(await sandbox.files.read('hello.txt'), 'Grüße')
    assert.deepEqual(await sandbox.files.read('hello.txt', { format: 'bytes' }), new TextEncoder().encode('Grüße'))
    assert.equal(await (await sandbox.files.read('hello.txt', { format: 'blob' })).text(), 'Grüße')
    const chunks = []
    for await (const chunk of await sandbox.files.read('hello.txt', { format: 'stream' })) chunks.push(chunk)
    assert.equal(Buffer.concat(chunks).toString(), 'Grüße')
  })

  test('large binary files survive both ways', async () => {
    const blob = createHash('shake128', { outputLength: 8 << 20 }).update('cloister').digest()
    await sandbox.files.write('/tmp/blob', blob.buffer.slice(blob.byteOffset, blob.byteOffset + blob.length))
    const sum = (await sandbox.commands.run('sha256sum /tmp/blob')).stdout.split(' ')[0]
    assert.equal(sum, createHash('sha256').update(blob).digest('hex'))
    assert.ok(blob.equals(await sandbox.files.read('/tmp/blob', { format: 'bytes' })))
  })

  test('several files are written at once', async () => {
    const files = [...Array(10).keys()].map((i) => ({ path: `/tmp/many/${i}`, data: `file ${i}` }))
    assert.equal((await sandbox.files.write(files)).length, 10)
    assert.equal(await sandbox.files.read('/tmp/many/7'), 'file 7')
  })

  test('list, exists, rename, remove and makeDir do as they say', async () => {
    assert.equal(await sandbox.files.makeDir('d/e'), true)
    assert.equal(await sandbox.files.makeDir('d/e'), false)
    await sandbox.files.write('d/f', 'x')
    const listed = (await sandbox.files.list('d')).map((entry) => [entry.name, entry.type]).sort()
    assert.deepEqual(listed, [['e', 'dir'], ['f', 'file']])
    assert.equal((await sandbox.files.rename('d/f', 'd/g')).path, '/home/user/d/g')
    assert.equal(await sandbox.files.exists('d/f'), false)
    assert.equal(await sandbox.files.exists('d/g'), true)
    assert.equal((await sandbox.files.getInfo('d/g')).size, 1)
    await sandbox.files.remove('d')
    assert.equal(await sandbox.files.exists('d'), false)
  })

  test('what is not there is not found, and a directory is not a file', async () => {
    await assert.rejects(sandbox.files.read('missing'), NotFoundError)
    await assert.rejects(sandbox.files.list('missing'), NotFoundError)
    await assert.rejects(sandbox.files.rename('missing', 'x'), NotFoundError)
    await assert.rejects(sandbox.files.read('/tmp'), InvalidArgumentError)
  })
})

describe('the life of a sandbox', options, () => {
  test('info tells what was asked for', async () => {
    const how = { timeoutMs: 200_000, metadata: { job: '42', 'k 1': 'v&=/é+' }, envs: { FOO: 'bar' } }
    await withSandbox(how, async (sandbox) => {
      const info = await sandbox.getInfo()
      assert.equal(info.sandboxId, sandbox.sandboxId)
      assert.deepEqual(info.metadata, { job: '42', 'k 1': 'v&=/é+' })
      assert.equal(info.state, 'running')
      assert.ok(Math.abs(secondsUntil(info.endAt) - 200) < 3)
      assert.equal((await sandbox.commands.run('echo $FOO')).stdout, 'bar\n')
      const listed = await Sandbox.list({ query: { metadata: { 'k 1': 'v&=/é+' } } }).nextItems()
      assert.deepEqual(listed.map((row) => row.sandboxId), [sandbox.sandboxId])
    })
  })

  test('setTimeout moves the end, and connect never shortens it', async () => {
    await withSandbox({ timeoutMs: 100_000 }, async (sandbox) => {
      await sandbox.setTimeout(500_000)
      const { endAt } = await sandbox.getInfo()
      assert.ok(Math.abs(secondsUntil(endAt) - 500) < 3)
      const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
      assert.equal(+(await again.getInfo()).endAt, +endAt)
      assert.equal((await again.commands.run('echo hi')).stdout, 'hi\n')
    })
  })

  test('a sandbox ends at its deadline', async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 3_000 })
    assert.equal(await sandbox.isRunning(), true)
    await sleep(4_000)
    assert.equal(await sandbox.isRunning(), false)
  })

  test('after kill everything fails as documented', async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.isRunning(), false)
    assert.equal(await sandbox.kill(), false)
    assert.equal(await Sandbox.kill('nonexistingsandbox'), false)
    await assert.rejects(sandbox.commands.run('true'), SandboxNotFoundError)
    await assert.rejects(sandbox.commands.list(), TimeoutError)
    await assert.rejects(sandbox.files.read('x'), TimeoutError)
    await assert.rejects(sandbox.files.list('/'), TimeoutError)
    await assert.rejects(sandbox.getInfo(), SandboxNotFoundError)
    await assert.rejects(sandbox.setTimeout(1000), SandboxNotFoundError)
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
  })

  test('killing a sandbox ends its running commands aloud', async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
    const handle = await sandbox.commands.run('sleep 100', { background: true })
    const waiting = handle.wait()
    setTimeout(() => sandbox.kill(), 500)
    await assert.rejects(waiting, (error) => {
      assert.ok(error instanceof TimeoutError, `${error.name}: ${error.message}`)
      assert.match(error.message, /killed or reached its end of life/)
      return true
    })
  })

  test('a wrong key and an unknown template are told apart', async () => {
    await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
    await assert.rejects(Sandbox.create('no-such-template'), (error) => {
      assert.ok(error instanceof SandboxError)
      assert.match(error.message, /404/)
      return true
    })
  })

  test('ten sandboxes are made and used at once', async () => {
    const one = (i) => withSandbox({ timeoutMs: 60_000 }, async (sandbox) => {
      await sandbox.files.write('who', String(i))
      return (await sandbox.commands.run('cat who')).stdout
    })
    const outputs = await Promise.all([...Array(10).keys()].map(one))
    assert.deepEqual(outputs, [...Array(10).keys()].map(String))
  })
})

// The JavaScript SDK, unmodified, on Node. run.py starts the server and sets the variables. It runs with several
// releases: what one does not have is skipped aloud, and errors are named by what all share.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import * as e2b from 'e2b'

const {
  AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, TimeoutError,
} = e2b
const isOld = !e2b.Secret
// The connect() of the oldest sets the deadline.
const { version } = JSON.parse(readFileSync(new URL('./node_modules/e2b/package.json', import.meta.url)))
const isOldest = /^2\.[012]\./.test(version)
// Old releases know one error for whatever is not found (the oldest none), and none for a connection that breaks.
const SandboxNotFoundError = e2b.SandboxNotFoundError ?? (isOldest ? SandboxError : NotFoundError)
const hasMetadata = !isOld
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
    const onStdout = async (text) => {
      seen.push(text)
      await sandbox.files.write('/tmp/heard', '') // the second line waits for this
    }
    await sandbox.commands.run('echo one; until [ -e /tmp/heard ]; do sleep 0.01; done; echo two', { onStdout })
    assert.deepEqual(seen, ['one\n', 'two\n'])
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

describe('more of commands', options, () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create({ timeoutMs: 300_000 }) })
  after(async () => { await sandbox.kill() })

  test('input ends when it is closed', async (t) => {
    if (!sandbox.commands.closeStdin) return t.skip('this release has no closeStdin')
    const handle = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
    await sandbox.commands.sendStdin(handle.pid, 'a\n')
    await sandbox.commands.closeStdin(handle.pid)
    assert.equal((await handle.wait()).stdout, 'a\nend\n')
    await assert.rejects(sandbox.commands.closeStdin(999999), NotFoundError)
  })

  test('what is not there is not found', async () => {
    await assert.rejects(sandbox.commands.connect(999999), NotFoundError)
    await assert.rejects(sandbox.commands.sendStdin(999999, 'x'), NotFoundError)
    assert.equal(await sandbox.commands.kill(999999), false)
    await assert.rejects(sandbox.commands.run('pwd', { cwd: '/no/such/place' }), SandboxError)
    await assert.rejects(sandbox.commands.run('pwd', { user: 'nobody-by-that-name' }), Error)
  })

  test('a handle that disconnects leaves the command running', async () => {
    const handle = await sandbox.commands.run('sleep 1; echo late', { background: true })
    await handle.disconnect()
    assert.equal((await (await sandbox.commands.connect(handle.pid)).wait()).stdout, 'late\n')
  })

  test('a terminal takes input, is resized, connected to and killed', async (t) => {
    let seen = ''
    const onData = (data) => { seen += new TextDecoder().decode(data) }
    const until = async (text) => {
      for (let i = 0; i < 100 && !seen.includes(text); i++) await sleep(50)
      assert.ok(seen.includes(text), seen)
    }
    const send = (text) => sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(text))
    const terminal = await sandbox.pty.create({ cols: 80, rows: 24, cwd: '/tmp', envs: { FOO: 'bar' }, onData })
    await send('stty size; echo $FOO-$PWD\n')
    await until('bar-/tmp')
    assert.match(seen, /24 80/)
    await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 40 })
    await send('stty size\n')
    await until('40 100')
    if (sandbox.pty.connect) {
      await terminal.disconnect()
      await sandbox.pty.connect(terminal.pid, { onData })
      await send('echo $((6*7))\n')
      await until('42')
    }
    assert.equal(await sandbox.pty.kill(terminal.pid), true)
    assert.equal(await sandbox.pty.kill(terminal.pid), false)
    await assert.rejects(sandbox.pty.resize(999999, { cols: 1, rows: 1 }), NotFoundError)
    await assert.rejects(sandbox.pty.sendInput(999999, new Uint8Array(1)), NotFoundError)
  })

  test('git makes a repository, commits, pushes and clones', async (t) => {
    const { git } = sandbox
    if (!git) return t.skip('this release has no git')
    await git.configureUser('A Name', 'a@example.com')
    await git.init('repo', { initialBranch: 'main' })
    await sandbox.files.write('repo/file', 'one')
    await git.add('repo')
    await git.commit('repo', 'first')
    assert.equal((await git.status('repo')).currentBranch, 'main')
    await git.createBranch('repo', 'side')
    await git.checkoutBranch('repo', 'main')
    assert.deepEqual((await git.branches('repo')).branches.sort(), ['main', 'side'])
    await git.deleteBranch('repo', 'side')
    await git.init('far.git', { bare: true, initialBranch: 'main' })
    await git.remoteAdd('repo', 'origin', '/home/user/far.git')
    await git.push('repo', { remote: 'origin', branch: 'main' })
    await git.clone('/home/user/far.git', { path: 'copy' })
    assert.equal(await sandbox.files.read('copy/file'), 'one')
    await assert.rejects(git.status('/tmp'), CommandExitError)
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

describe('more of files', options, () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create({ timeoutMs: 300_000 }) })
  after(async () => { await sandbox.kill() })

  test('blobs and streams are written', async () => {
    await sandbox.files.write('blob', new Blob(['a', 'b']))
    assert.equal(await sandbox.files.read('blob'), 'ab')
    const stream = new Blob(['x'.repeat(300_000)]).stream()
    await sandbox.files.write('stream', stream)
    assert.equal((await sandbox.files.read('stream')).length, 300_000)
  })

  test('several files are written by writeFiles, and none', async (t) => {
    if (!sandbox.files.writeFiles) return t.skip('this release has no writeFiles')
    const files = [{ path: 'w/1', data: '1' }, { path: 'w/2', data: '2' }]
    assert.deepEqual((await sandbox.files.writeFiles(files)).map((info) => info.name), ['1', '2'])
    assert.deepEqual(await sandbox.files.writeFiles([]), [])
  })

  test('gzip on the way changes nothing', async () => {
    const text = 'the same line again\n'.repeat(20_000)
    await sandbox.files.write('zipped', text, { gzip: true }) // a release without it sends it as it is
    assert.equal((await sandbox.files.getInfo('zipped')).size, text.length)
    assert.equal(await sandbox.files.read('zipped', { gzip: true }), text)
  })

  test('metadata of a file stays with it', async (t) => {
    if (!hasMetadata) return t.skip('this release has no metadata of files')
    await sandbox.files.write('tagged', 'x', { metadata: { Author: 'me' } })
    assert.deepEqual((await sandbox.files.getInfo('tagged')).metadata, { author: 'me' })
  })

  test('a list goes as deep as asked', async () => {
    await sandbox.files.write('deep/a/b/c', 'x')
    assert.deepEqual((await sandbox.files.list('deep')).map((entry) => entry.name), ['a'])
    const paths = (await sandbox.files.list('deep', { depth: 3 })).map((entry) => entry.path)
    assert.ok(paths.includes('/home/user/deep/a/b/c'))
    await assert.rejects(sandbox.files.list('deep', { depth: 0 }), InvalidArgumentError)
    await assert.rejects(sandbox.files.list('deep/a/b/c'), InvalidArgumentError)
    await assert.rejects(sandbox.files.getInfo('missing'), NotFoundError)
  })

  test('a watched directory tells what happens in it', async () => {
    const seen = []
    let ended = false
    await sandbox.files.makeDir('watched')
    const onExit = () => { ended = true }
    const watcher = await sandbox.files.watchDir('watched', (event) => { seen.push(event) }, { recursive: true, onExit })
    await sandbox.files.write('watched/sub/a', 'x')
    await sandbox.files.write('watched/b', 'x')
    await sandbox.files.remove('watched/b')
    const has = (name, type) => seen.some((event) => event.name === name && event.type === type)
    for (let i = 0; i < 100 && !has('b', 'remove'); i++) await sleep(50)
    assert.ok(has('sub', 'create') && has('b', 'create') && has('b', 'write') && has('b', 'remove'), JSON.stringify(seen))
    await watcher.stop()
    for (let i = 0; i < 100 && !ended; i++) await sleep(50)
    assert.ok(ended)
    await assert.rejects(sandbox.files.watchDir('missing', () => {}), NotFoundError)
  })

  test('signed links need no headers', async () => {
    await sandbox.files.write('linked', 'by link')
    const link = await sandbox.downloadUrl('linked', { useSignatureExpiration: 60_000 })
    assert.equal(await (await fetch(link)).text(), 'by link')
    assert.equal((await fetch(link.replace('linked', 'other'))).status, 401)
    const form = new FormData()
    form.append('file', new Blob(['up']), 'ignored')
    const upload = await sandbox.uploadUrl('uploaded')
    assert.equal((await fetch(upload, { method: 'POST', body: form })).status, 200)
    assert.equal(await sandbox.files.read('uploaded'), 'up')
  })
})

describe('the life of a sandbox', options, () => {
  test('pages follow one another, and states are told apart', async () => {
    const metadata = { mark: `${Date.now()}-${Math.random()}` }
    const boxes = []
    for (let i = 0; i < 3; i++) boxes.push(await Sandbox.create({ timeoutMs: 60_000, metadata }))
    const paginator = Sandbox.list({ query: { metadata, state: ['running'] }, limit: 2 })
    const ids = []
    while (paginator.hasNext) ids.push(...(await paginator.nextItems()).map((row) => row.sandboxId))
    assert.deepEqual(ids, boxes.map((box) => box.sandboxId).reverse())
    assert.deepEqual(await Sandbox.list({ query: { metadata, state: ['paused'] } }).nextItems(), [])
    for (const box of boxes) await box.kill()
  })

  test('metrics say what a sandbox uses', async () => {
    await withSandbox({ timeoutMs: 60_000 }, async (sandbox) => {
      let metrics = []
      for (let i = 0; i < 40 && !metrics.length; i++) {
        await sleep(500)
        metrics = await sandbox.getMetrics()
      }
      assert.ok(metrics.length && metrics[0].memUsed > 0 && metrics[0].memTotal >= metrics[0].memUsed)
      assert.match(sandbox.getHost(3000), new RegExp(`^3000-${sandbox.sandboxId}\\.`))
    })
  })

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
      const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: isOldest ? 500_000 : 10_000 })
      if (!isOldest) assert.equal(+(await again.getInfo()).endAt, +endAt)
      assert.equal((await again.commands.run('echo hi')).stdout, 'hi\n')
    })
  })

  test('a sandbox ends at its deadline', async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 2_000 })
    assert.equal(await sandbox.isRunning(), true)
    for (let i = 0; i < 200 && await sandbox.isRunning(); i++) await sleep(50)
    assert.equal(await sandbox.isRunning(), false)
  })

  test('after kill everything fails as documented', async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
    assert.equal(await sandbox.kill() ?? true, true) // old releases do not say
    assert.equal(await sandbox.isRunning(), false)
    assert.equal(await sandbox.kill() ?? false, false)
    assert.equal(await Sandbox.kill('nonexistingsandbox'), false)
    const gone = (error) => error instanceof SandboxNotFoundError || (isOld && error instanceof SandboxError)
    await assert.rejects(sandbox.commands.run('true'), gone)
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
      if (isOld) return error instanceof SandboxError
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

  test('a gateway for MCP servers that the template does not have is an error of the SDK', async (t) => {
    if (isOld) return t.skip('this release knows no MCP servers, or leaves the sandbox behind')
    const metadata = { test: 'no gateway' }
    await assert.rejects(Sandbox.create('base', { metadata, mcp: { browserbase: {} } }), /Failed to start MCP gateway/)
    assert.deepEqual(await Sandbox.list({ query: { state: ['running'], metadata } }).nextItems(), [])
  })

  test('network rules are set, replaced, and shown', async (t) => {
    if (!Sandbox.prototype.updateNetwork) return t.skip('this release has no updateNetwork')
    const network = { denyOut: ({ allTraffic }) => [allTraffic], allowOut: ['1.1.1.1', 'api.example.com'] }
    await withSandbox({ timeoutMs: 60_000, network }, async (sandbox) => {
      let info = await sandbox.getInfo()
      assert.deepEqual(info.network.allowOut, ['1.1.1.1', 'api.example.com'])
      assert.deepEqual(info.network.denyOut, ['0.0.0.0/0'])
      await sandbox.updateNetwork({ denyOut: ['192.0.2.1'] })
      const began = Date.now()
      await assert.rejects(sandbox.commands.run('curl -sS http://192.0.2.1/'), CommandExitError)
      assert.ok(Date.now() - began < 2000, 'a refusal comes at once')
      info = await sandbox.getInfo()
      assert.deepEqual([info.network.allowOut, info.network.denyOut], [undefined, ['192.0.2.1']])
      await sandbox.updateNetwork({ allowInternetAccess: false })
      await assert.rejects(sandbox.commands.run('curl -sS http://example.com/'), /Could not resolve host|exit status 6/)
      await assert.rejects(sandbox.updateNetwork({ denyOut: ['example.com'] }), /denyOut/)
      await sandbox.updateNetwork({})
      assert.equal((await sandbox.getInfo()).network, undefined)
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

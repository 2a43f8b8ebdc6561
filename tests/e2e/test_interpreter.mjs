// run_code with the JavaScript SDK, unmodified, in `base`: no template but the one that is always there.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

let box

before(async () => {
  box = await Sandbox.create('base', { timeoutMs: 120_000 })
})

after(async () => {
  await box?.kill()
})

test('the value of the last expression comes back', async () => {
  const { text, error } = await box.runCode('sum([1, 2, 3])')
  assert.equal(error, undefined)
  assert.equal(text, '6')
})

test('state stays, and contexts are apart', async () => {
  const one = await box.createCodeContext()
  const two = await box.createCodeContext({ cwd: '/tmp' })
  await box.runCode('x = 41', { context: one })
  assert.equal((await box.runCode('x + 1', { context: one })).text, '42')
  assert.equal((await box.runCode('x', { context: two })).error.name, 'NameError')
  assert.equal((await box.runCode('import os; os.getcwd()', { context: two })).text, '/tmp')
  assert.deepEqual((await box.listCodeContexts()).slice(-2).map((c) => c.id), [one.id, two.id])
  await box.restartCodeContext(one)
  assert.equal((await box.runCode('x', { context: one })).error.name, 'NameError')
  await box.removeCodeContext(one)
  await assert.rejects(box.runCode('1', { context: one }), /not found/)
})

test('output streams as it is made, with every character whole', async () => {
  const words = 'ünï ☃ 🦄 \u2028'
  const seen = []
  const wait = `import os, time\nwhile not os.path.exists('/tmp/heard'): time.sleep(0.01)`
  await box.runCode(`print(${JSON.stringify(words)})\n${wait}\nprint('end')`, {
    onStdout: async (message) => {
      seen.push(message.line)
      await box.files.write('/tmp/heard', '') // the second line waits for this
    },
  })
  assert.equal(seen.join(''), `${words}\nend\n`)
})

test('ten thousand flushed lines arrive in order', async () => {
  const seen = []
  await box.runCode('for i in range(10000): print(i, flush=True)', { onStdout: (m) => seen.push(m.line) })
  assert.equal(seen.join(''), Array.from({ length: 10000 }, (_, i) => `${i}\n`).join(''))
})

test('an error has a name, a value and a traceback', async () => {
  const { error } = await box.runCode('1/0')
  assert.equal(error.name, 'ZeroDivisionError')
  assert.equal(error.value, 'division by zero')
  assert.match(error.traceback, /ZeroDivisionError/)
})

test('variables for one cell do not stay', async () => {
  const code = "import os; os.environ.get('FOO')"
  assert.equal((await box.runCode(code, { envs: { FOO: "it's" } })).text, "it's")
  assert.equal((await box.runCode(code)).text, undefined)
})

test('a cell that takes too long is left and interrupted', async () => {
  await box.runCode('kept = 1')
  await assert.rejects(box.runCode('while True: pass', { timeoutMs: 500 }))
  assert.equal((await box.runCode('kept')).text, '1')
})

test('a crash is told, and the next cell runs', async () => {
  assert.equal((await box.runCode('import os; os._exit(1)')).error.name, 'ContextRestarting')
  assert.equal((await box.runCode('1 + 1')).text, '2')
})

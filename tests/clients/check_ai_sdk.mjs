// The AI SDK: generateText and streamText with its mock model, and tools that use @e2b/code-interpreter.
import { deepEqual, equal, match, ok } from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'
import { generateText, stepCountIs, streamText, tool } from 'ai'
import * as mocks from 'ai/test'
import { z } from 'zod'
import { check, done, running } from './checks.mjs'

// The newest specification that this release has a mock for.
const Mock = mocks[Object.keys(mocks).filter((name) => name.startsWith('MockLanguageModel')).sort().at(-1)]
const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
}
let sandbox
const tools = {
  runPython: tool({
    description: 'Runs Python',
    inputSchema: z.object({ code: z.string() }),
    execute: async ({ code }) => {
      const { text, logs, error } = await sandbox.runCode(code)
      return { text, stdout: logs.stdout.join(''), error: error?.name }
    },
  }),
  runCommand: tool({
    description: 'Runs a command',
    inputSchema: z.object({ command: z.string() }),
    execute: async ({ command }) => (await sandbox.commands.run(command)).stdout,
  }),
}

// A model that calls the tools in turn and then says 'done'.
function script(...calls) {
  const parts = calls.map(([toolName, input], at) => ({
    finishReason: { unified: 'tool-calls', raw: undefined },
    content: [{ type: 'tool-call', toolCallId: `call-${at}`, toolName, input: JSON.stringify(input) }],
  }))
  parts.push({ finishReason: { unified: 'stop', raw: undefined }, content: [{ type: 'text', text: 'done' }] })
  let next = 0
  return new Mock({
    doGenerate: async () => ({ ...parts[next++], usage, warnings: [] }),
    doStream: async () => {
      const { content, finishReason } = parts[next++]
      const chunks = content.flatMap((part) =>
        part.type === 'text'
          ? [
              { type: 'text-start', id: '1' },
              { type: 'text-delta', id: '1', delta: part.text },
              { type: 'text-end', id: '1' },
            ]
          : [part]
      )
      const all = [{ type: 'stream-start', warnings: [] }, ...chunks, { type: 'finish', finishReason, usage }]
      return { stream: ReadableStream.from(all) }
    },
  })
}

const outputs = (steps) => steps.flatMap((step) => step.toolResults.map((result) => result.output))
const go = { tools, prompt: 'go', stopWhen: stepCountIs(10) }

await check('create', async () => {
  sandbox = await Sandbox.create({ timeoutMs: 300_000 })
}, { vital: true })
await check('run code, with state across calls', async () => {
  const model = script(['runPython', { code: 'x = [1, 2, 3]' }], ['runPython', { code: 'sum(x)' }])
  const result = await generateText({ ...go, model })
  equal(outputs(result.steps)[1].text, '6')
  equal(result.text, 'done')
})
await check('error of user code', async () => {
  const result = await generateText({ ...go, model: script(['runPython', { code: '1 / 0' }]) })
  equal(outputs(result.steps)[0].error, 'ZeroDivisionError')
})
await check('run commands, with files across calls', async () => {
  const model = script(['runCommand', { command: 'echo text > a.txt' }], ['runCommand', { command: 'cat a.txt' }])
  deepEqual(outputs((await generateText({ ...go, model })).steps), ['', 'text\n'])
})
await check('command that fails', async () => {
  const result = await generateText({ ...go, model: script(['runCommand', { command: 'exit 3' }]) })
  const failed = result.steps.flatMap((step) => step.content).find((part) => part.type === 'tool-error')
  match(String(failed.error), /exit status 3|code 3/)
})
await check('streamed text', async () => {
  const result = streamText({ ...go, model: script(['runPython', { code: 'print(6 * 7)' }]) })
  let text = ''
  for await (const piece of result.textStream) text += piece
  equal(text, 'done')
  equal(outputs(await result.steps)[0].stdout, '42\n')
})
await check('picture', async () => {
  const made = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()')
  ok(Buffer.from(made.results[0].png, 'base64').subarray(1, 4).equals(Buffer.from('PNG')))
})
await check('pause', async () => {
  await sandbox.pause()
  await sandbox.connect()
})
await check('kill', async () => {
  await sandbox.kill()
  ok(!(await running()).includes(sandbox.sandboxId))
})
done()

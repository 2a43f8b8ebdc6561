// @openai/agents: its E2B sandbox client by hand, and a SandboxAgent with the scripted model that it ships.
import { equal, match, ok } from 'node:assert/strict'
import { run, setTracingDisabled } from '@openai/agents'
import { E2BSandboxClient } from '@openai/agents-extensions/sandbox/e2b'
import { file, SandboxAgent, shell } from '@openai/agents/sandbox'
import { assistantMessage, functionCall, modelResponse, ScriptedModel } from '@openai/agents/testing'
import { check, done, fetchHost, running } from './checks.mjs'

setTracingDisabled(true)
const client = new E2BSandboxClient({ timeout: 300 })
const text = (bytes) => Buffer.from(bytes).toString()
let session

await check('create', async () => {
  // Plain objects: the extension may bring another copy of the classes than @openai/agents.
  const manifest = { entries: { notes: { type: 'dir', children: { 'a.txt': file({ content: 'one\n' }) } } } }
  session = await client.create({ manifest, options: { env: { GREETING: 'hello' }, exposedPorts: [8000] } })
}, { vital: true })
await check('run a command', async () => {
  match(await session.execCommand({ cmd: 'echo $GREETING; echo err >&2' }), /code 0[^]*hello\n+err/)
})
await check('exit code', async () => match(await session.execCommand({ cmd: 'exit 3' }), /code 3/))
await check('files', async () => {
  equal(text(await session.readFile({ path: 'notes/a.txt' })), 'one\n')
  await session.createEditor().createFile({ type: 'create_file', path: 'notes/b.txt', diff: '+two\n' })
  match(await session.execCommand({ cmd: 'ls notes; cat notes/b.txt' }), /a.txt\nb.txt\ntwo/)
  ok(await session.pathExists('notes/b.txt'))
  ok(!(await session.pathExists('notes/none')))
})
await check('terminal', async () => {
  const begun = await session.execCommand({ cmd: 'read name; echo hello $name', tty: true, yieldTimeMs: 1000 })
  const sessionId = Number(begun.match(/session ID (\d+)/)[1])
  match(await session.writeStdin({ sessionId, chars: 'cloister\n', yieldTimeMs: 2000 }), /hello cloister/)
})
await check('server in the background', async () => {
  await session.execCommand({ cmd: 'nohup python3 -m http.server 8000 >/dev/null 2>&1 &' })
  const { host, port } = await session.resolveExposedPort(8000)
  match(await fetchHost(`${host}:${port}`), /notes/)
})
await check('workspace as an archive', async () => {
  const archive = await session.persistWorkspace()
  await session.execCommand({ cmd: 'echo changed > notes/a.txt' })
  await session.hydrateWorkspace(archive)
  equal(text(await session.readFile({ path: 'notes/a.txt' })), 'one\n')
})
await check('reconnect', async () => {
  const state = await client.deserializeSessionState(await client.serializeSessionState(session.state))
  const again = await client.resume(state)
  equal(again.state.sandboxId, session.state.sandboxId)
  match(await again.execCommand({ cmd: 'cat notes/a.txt' }), /one/)
})
await check('agent', async () => {
  const call = functionCall('exec_command', { cmd: 'echo $((6 * 7)) > answer; cat answer' }, { callId: '1' })
  const model = new ScriptedModel([modelResponse([call]), modelResponse([assistantMessage('done')])])
  const agent = new SandboxAgent({ name: 'tester', model, capabilities: [shell()] })
  const result = await run(agent, 'go', { sandbox: { session } })
  const outputs = result.newItems.filter((item) => item.type === 'tool_call_output_item').map((item) => item.output)
  match(JSON.stringify(outputs), /42/)
  equal(result.finalOutput, 'done')
})
await check('timeout', async () => {
  const short = await client.create({ options: { commandTimeoutMs: 1000 } })
  const result = await short.execCommand({ cmd: 'sleep 30' }).catch((error) => String(error))
  await short.close()
  match(result, /timed? ?out|deadline/i)
})
await check('kill', async () => {
  await session.close()
  ok(!(await running()).includes(session.state.sandboxId))
})
await check('workspace as a snapshot', async () => {
  const own = await client.create({ options: { workspacePersistence: 'snapshot' } })
  await own.persistWorkspace().finally(() => own.close())
})
await check('pause at the end of its time', async () => {
  await (await client.create({ options: { onTimeout: 'pause' } })).close()
})
await check('MCP', async () => {
  await (await client.create({ options: { mcp: { duckduckgo: {} } } })).close()
})
done()

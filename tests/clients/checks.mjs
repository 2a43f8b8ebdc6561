// checks.mjs - what the JavaScript scripts of tests/clients share: one JSON line on standard output for each check.
//
// The script goes on after a check that failed, so that one missing capability does not hide the rest; a check that the
// others need is `vital`, and the script ends when it fails.
//
//     await check('run a command', async () => { equal((await run('echo 1')).stdout, '1\n') })

import { writeSync } from 'node:fs'
import { request } from 'node:http'

const CHECK_SECONDS = 60

// Frameworks print to standard output. That is for our results alone, so their output goes to the log.
process.stdout.write = process.stderr.write.bind(process.stderr)
const say = (fields) => writeSync(1, JSON.stringify(fields) + '\n')

// The error and its causes: frameworks wrap what the server said.
function chain(error) {
  const texts = []
  for (const seen = new Set(); error && !seen.has(error); error = error.cause ?? error.details?.cause) {
    seen.add(error)
    texts.push(error instanceof Error ? `${error.name}: ${error.message}` : String(error))
  }
  return texts.join(' <- ')
}

export async function check(name, body, { vital = false } = {}) {
  const start = Date.now()
  let timer
  const tooLong = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the check took longer than ${CHECK_SECONDS} s`)), CHECK_SECONDS * 1000)
  })
  let error
  try {
    await Promise.race([body(), tooLong])
  } catch (caught) {
    error = chain(caught) || 'failed without a reason'
  }
  clearTimeout(timer)
  say({ check: name, ok: !error, seconds: (Date.now() - start) / 1000, ...(error && { error }) })
  if (error && vital) done(false)
}

// The last line of every script: without it the script broke off. Sockets that the framework keeps open do not matter.
export function done(all = true) {
  say({ done: all })
  process.exit(0)
}

// One call of the server's API, beside the SDK that is under test.
export async function api(method, path) {
  const answer = await fetch(process.env.E2B_API_URL + path, {
    method,
    headers: { 'X-API-Key': process.env.E2B_API_KEY },
    signal: AbortSignal.timeout(30_000),
  })
  const text = await answer.text()
  return text ? JSON.parse(text) : null
}

export async function running() {
  return (await api('GET', '/v2/sandboxes?state=running,paused')).map((row) => row.sandboxID)
}

export async function waitFor(what, seconds = 10) {
  const end = Date.now() + seconds * 1000
  while (!(await what())) {
    if (Date.now() > end) throw new Error(`not within ${seconds} s`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

// The body at a sandbox's host; tried again while its server starts. Node's resolver may not know *.localhost.
export async function fetchHost(host, seconds = 10) {
  let last = ''
  const [name, port] = host.split(':')
  const once = () =>
    new Promise((resolve, reject) => {
      const at = name.endsWith('.localhost') ? '127.0.0.1' : name
      request({ host: at, port: port ?? 80, path: '/', headers: { Host: host }, timeout: 10_000 }, (answer) => {
        last = ''
        answer.on('data', (piece) => (last += piece))
        answer.on('end', () => resolve(answer.statusCode === 200))
      })
        .on('error', reject)
        .end()
    })
  await waitFor(once, seconds).catch((error) => {
    throw new Error(`${host}: ${error.message}: ${last.slice(0, 200)}`)
  })
  return last
}

// npm's `@lobsterkit/lobstermail`, unmodified: every method that it has. Methods that a self-hosted server cannot serve have
// an error that says why. run.py starts the server and sets the variables.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { before, describe, test } from 'node:test'
import WS from 'ws'

globalThis.WebSocket ??= WS // Node before 22 has none, and the client expects it there too
const {
  AddressCollisionError, AuthenticationError, Domain, Email, Inbox, LobsterMail,
  LobsterMailError, NotFoundError, RateLimitError, RealtimeConnection, WEBHOOK_EVENTS,
} = await import('@lobsterkit/lobstermail')

const options = { timeout: 120_000 }
const baseUrl = process.env.LOBSTERMAIL_API_URL
const admin = readFileSync(process.env.CLOISTER_E2E_ADMIN_TOKEN, 'utf8').trim()
const firstToken = process.env.LOBSTERMAIL_TOKEN
delete process.env.LOBSTERMAIL_TOKEN // or the client would take it
const unique = () => Math.random().toString(36).slice(2, 10)
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// What the operator does.
async function operate(method, path, body) {
  const answer = await fetch(`${baseUrl}${path}`, {
    method, headers: { 'X-Admin-Token': admin, 'Content-Type': 'application/json' }, body: JSON.stringify(body),
  })
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.clone().text()}`)
  return answer.json()
}
const decide = (id, decision) => operate('POST', `/mail/messages/${id.replace('eml_', '')}/decide`, { decision })
const setMode = (inbox, mode) => operate('PUT', `/mail/inboxes/${inbox.address}/mode`, { mode })

const signUp = () => LobsterMail.create({ baseUrl, persistToken: false })

async function raw(client, method, path, body) {
  const answer = await fetch(`${baseUrl}${path}`, {
    method, headers: { Authorization: `Bearer ${client.token}` }, body: body && JSON.stringify(body),
  })
  return { status: answer.status, json: await answer.json() }
}

async function refused(promise, kind, code, text) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof kind, `${error.name}: ${error.message}`)
    assert.equal(error.code, code)
    assert.match(error.message, text)
    assert.ok(error.requestId)
    return true
  })
}

describe('lobstermail', options, () => {
  let client, ann, bob

  before(async () => {
    client = await signUp()
    ann = await client.createInbox({ displayName: 'Ann' })
    bob = await client.createInbox()
    await setMode(ann, 'autonomous')
  })

  // ---- accounts and inboxes ----

  test('signing up gives an account that can send', async () => {
    assert.match(client.token, /^lm_sk_live_\w{43}$/)
    const account = await client.getAccount()
    assert.match(account.id, /^acct_/)
    assert.equal(account.limits.canSend, true)
    assert.equal(account.usage.inboxCount, 2)
    assert.ok(Date.parse(account.createdAt))
  })

  test('the first account of the server is in cloister env', async () => {
    const token = firstToken
    const first = await LobsterMail.create({ baseUrl, token, persistToken: false })
    assert.equal(first.token, token)
    assert.ok((await first.listInboxes()).length >= 1)
  })

  test('a wrong token is refused', async () => {
    const stranger = await LobsterMail.create({ baseUrl, token: `lm_sk_live_${'x'.repeat(43)}`, persistToken: false })
    await refused(stranger.getAccount(), AuthenticationError, 'authentication_error', /./)
  })

  test('inboxes are made, shown, listed and deleted', async () => {
    const name = `box-${unique()}`
    const box = await client.createInbox({ localPart: name, displayName: 'Box' })
    assert.ok(box instanceof Inbox)
    assert.match(box.id, /^ibx_/)
    assert.equal(box.address, `${name}@${box.domain}`)
    assert.deepEqual([box.displayName, box.isActive, box.emailCount, box.expiresAt], ['Box', true, 0, null])
    await refused(client.createInbox({ localPart: name }), AddressCollisionError, 'address_collision', /taken/)
    const dotted = `${name.slice(0, 5)}.${name.slice(5)}`
    await refused(client.createInbox({ localPart: dotted }), AddressCollisionError, 'address_collision', /taken/)
    await refused(client.createInbox({ localPart: 'postmaster' }), LobsterMailError, 'invalid_request', /./)
    assert.equal((await client.getInbox(box.id)).address, box.address)
    assert.ok((await client.listInboxes()).some((row) => row.id === box.id))
    await client.deleteInbox(box.id)
    await refused(client.getInbox(box.id), NotFoundError, 'not_found', /./)
    assert.ok(!(await client.listInboxes()).some((row) => row.id === box.id))
  })

  test('a smart inbox takes the next name when one is taken', async () => {
    const name = `Smart ${unique()}`
    const one = await client.createSmartInbox({ name, org: 'Acme' })
    const two = await client.createSmartInbox({ name, org: 'Acme' })
    const slug = name.toLowerCase().replace(' ', '-')
    assert.equal(one.address.split('@')[0], slug)
    assert.equal(two.address.split('@')[0], `${slug}-acme`)
    const preferred = await client.createSmartInbox({ preferred: [slug, `x-${unique()}`] })
    assert.match(preferred.address, /^x-/)
    for (const inbox of [one, two, preferred]) await client.deleteInbox(inbox.id)
  })

  // ---- sending and reading ----

  test('a message waits for a person, and then arrives', async () => {
    const sent = await bob.send({ to: ann.address, subject: `Held ${unique()}`, body: { text: 'please' } })
    assert.match(sent.id, /^eml_/)
    assert.equal(sent.status, 'pending_approval')
    const waits = ann.waitForEmail({ filter: { from: bob.address }, timeout: 60_000 })
    await sleep(300)
    const began = Date.now()
    await decide(sent.id, 'approve')
    const email = await waits
    assert.ok(Date.now() - began < 5000)
    assert.ok(email instanceof Email)
    assert.equal(email.body.trim(), 'please')
    assert.equal((await bob.getEmail(sent.id)).status, 'sent')
  })

  test('a rejected message never arrives', async () => {
    const subject = `Rejected ${unique()}`
    const sent = await bob.send({ to: [ann.address], subject, body: { text: 'x' } })
    await decide(sent.id, 'reject')
    assert.equal((await bob.getEmail(sent.id)).status, 'rejected')
    assert.equal(await ann.waitForEmail({ filter: { subject }, timeout: 1500 }), null)
  })

  test('a message has all fields, and its text on demand', async () => {
    const subject = `Fields ${unique()}`
    const file = Buffer.from('the file\0\xff', 'latin1')
    const sent = await ann.send({
      to: [bob.address], cc: ['carol@elsewhere.example'], subject, replyTo: 'desk@elsewhere.example',
      body: { text: 'plain text', html: '<p>rich <b>text</b></p>' },
      attachments: [{ filename: 'a ü.bin', contentType: 'application/x-thing', content: file.toString('base64') }],
    })
    assert.match(sent.status, /^(queued|sent)$/)
    const email = await bob.waitForEmail({ filter: { from: ann.address, subject }, timeout: 30_000 })
    assert.deepEqual([email.inboxId, email.direction, email.from, email.subject], [bob.id, 'inbound', ann.address, subject])
    assert.ok(email.to.some((to) => to.includes(bob.address)))
    assert.ok(email.cc.some((to) => to.includes('carol@elsewhere.example')))
    assert.equal(email.hasAttachments, true)
    assert.equal(email.isInjectionRisk, false)
    assert.match(email.body, /plain text/)
    assert.match(email.safeBodyForLLM(), /\[EMAIL_CONTENT_START\]\nplain text/)
    assert.equal(email.attachments[0].sizeBytes, file.length)
    const got = await email.downloadAttachment(0)
    assert.deepEqual([got.filename, got.contentType], ['a ü.bin', 'application/x-thing'])
    assert.ok(got.data.equals(file))
    assert.ok((await email.getAttachmentUrl(0)).startsWith(baseUrl))
    await assert.rejects(email.getAttachmentUrl(7), /out of bounds/)
    // A row of a list has no text; it is fetched on demand.
    const row = (await bob.receive({ limit: 5 })).data.find((one) => one.subject === subject)
    assert.equal(row.body, null)
    assert.match(row.safeBodyForLLM(), /plain text/) // the preview
    await row.fetchFullBody()
    assert.match(row.body, /plain text/)
    assert.equal((await bob.getEmail(email.id)).isRead, true)
  })

  test('lists have pages and filters', async () => {
    const box = await client.createInbox()
    for (const n of [1, 2, 3]) await ann.send({ to: box.address, subject: `Page ${n}`, body: { text: `text ${n}` } })
    await box.waitForEmail({ filter: { subject: 'Page 3' }, since: new Date(0).toISOString(), timeout: 30_000 })
    const first = await box.receive({ limit: 2 })
    assert.deepEqual(first.data.map((email) => email.subject), ['Page 3', 'Page 2'])
    const second = await box.receive({ limit: 2, cursor: first.cursor })
    assert.deepEqual(second.data.map((email) => email.subject), ['Page 1'])
    assert.equal(second.cursor, undefined)
    assert.equal((await box.receive({ direction: 'outbound' })).data.length, 0)
    assert.equal((await box.receive({ direction: 'inbound', limit: 100 })).data.length, 3)
    assert.equal((await box.receive({ since: new Date(Date.now() + 60_000).toISOString() })).data.length, 0)
    // `since` is inclusive.
    assert.equal((await box.receive({ since: first.data[0].receivedAt })).data.length, 1)
    assert.equal((await client.getInbox(box.id)).emailCount, 3)
    await client.deleteInbox(box.id)
  })

  test('threads are listed and shown; an answer joins', async () => {
    const subject = `Thread ${unique()}`
    await ann.send({ to: bob.address, subject, body: { text: 'first' } })
    const email = await bob.waitForEmail({ filter: { subject }, timeout: 30_000 })
    const answer = await bob.send({ to: ann.address, subject: `Re: ${subject}`, body: { text: 'second' }, inReplyTo: email.id })
    assert.equal(answer.threadId, email.threadId)
    const { data, hasMore } = await bob.listThreads({ limit: 50 })
    const row = data.find((one) => one.id === email.threadId)
    assert.deepEqual([row.subject, row.emailCount, row.inboxId, hasMore], [subject, 2, bob.id, false])
    const thread = await bob.getThread(email.threadId)
    assert.deepEqual(thread.emails.map((one) => one.id), [email.id, answer.id])
    assert.equal(thread.emails[0].preview.trim(), 'first')
    const page = await bob.listThreads({ limit: 1 })
    if (page.hasMore) assert.notEqual((await bob.listThreads({ limit: 1, cursor: page.cursor })).data[0].id, page.data[0].id)
    await decide(answer.id, 'approve')
    const back = await ann.waitForEmail({ filter: { subject: `Re: ${subject}` }, timeout: 30_000 })
    assert.equal((await ann.getThread(back.threadId)).emails.length, 2) // in the sender's inbox too
  })

  test('a search spans the inboxes of the account', async () => {
    const word = `xylo${unique()}`
    await ann.send({ to: bob.address, subject: `About ${word}`, body: { text: 'x' } })
    await bob.waitForEmail({ filter: { subject: word }, timeout: 30_000 })
    const found = await client.searchEmails({ q: word })
    assert.deepEqual(found.data.map((email) => email.inboxId).sort(), [ann.id, bob.id].sort())
    assert.equal(found.hasMore, false)
    assert.equal((await client.searchEmails({ q: word, inboxId: bob.id })).data.length, 1)
    assert.equal((await client.searchEmails({ q: word, direction: 'outbound' })).data[0].inboxId, ann.id)
    assert.equal((await client.searchEmails({ q: word, hasAttachments: true })).data.length, 0)
    assert.equal((await client.searchEmails({ q: word, from: ann.address.slice(0, 8), since: '2020-01-01T00:00:00Z' })).data.length, 2)
    assert.equal((await client.searchEmails({ q: word, until: '2020-01-01T00:00:00Z' })).data.length, 0)
    const page = await client.searchEmails({ q: word, limit: 1 })
    assert.equal(page.hasMore, true)
    const next = await client.searchEmails({ q: word, limit: 1, cursor: page.cursor })
    assert.notEqual(next.data[0].id, page.data[0].id)
    assert.equal((await client.searchEmails({ q: `no${word}` })).data.length, 0)
  })

  // ---- waiting ----

  test('a wait ends without a message', async () => {
    const began = Date.now()
    assert.equal(await bob.waitForEmail({ timeout: 2000, since: new Date(Date.now() + 5000).toISOString() }), null)
    assert.ok(Date.now() - began >= 1900)
  })

  test('a wait with a regular expression does not poll without a pause', async () => {
    const kept = globalThis.fetch
    let polls = 0
    globalThis.fetch = (url, how) => {
      if (String(url).includes('/emails/poll')) polls++
      return kept(url, how)
    }
    try {
      // There are messages, and none fits.
      assert.equal(await bob.waitForEmail({ timeout: 2500, since: '2020-01-01T00:00:00Z', filter: { subject: /never/ } }), null)
    } finally {
      globalThis.fetch = kept
    }
    assert.ok(polls >= 2 && polls <= 8, `${polls} polls`)
  })

  test('a wait without long polls works too', async () => {
    const subject = `Classic ${unique()}`
    await ann.send({ to: bob.address, subject, body: { text: 'x' } })
    const email = await bob.waitForEmail({ filter: { subject: /^Classic/ }, longPoll: false, pollInterval: 200, timeout: 20_000 })
    assert.equal(email.subject, subject)
  })

  test('many wait at once and each gets its message', async () => {
    const boxes = await Promise.all([1, 2, 3, 4, 5].map(() => client.createInbox()))
    const waits = boxes.map((box) => box.waitForEmail({ timeout: 30_000 }))
    await sleep(200)
    for (const box of boxes) await ann.send({ to: box.address, subject: box.address, body: { text: 'x' } })
    for (const [i, email] of (await Promise.all(waits)).entries()) assert.equal(email.subject, boxes[i].address)
    for (const box of boxes) await client.deleteInbox(box.id)
  })

  // ---- real time ----

  test('a WebSocket tells of messages as they arrive', async () => {
    const realtime = await client.connect({ autoReconnect: false })
    assert.ok(realtime instanceof RealtimeConnection)
    assert.equal(realtime.connected, true)
    assert.equal(await client.connect(), realtime)
    const got = [], all = [], events = [], errors = []
    const leave = realtime.subscribe(bob.id, (email) => got.push(email))
    realtime.onEmail((email) => all.push(email))
    realtime.onEvent((event) => events.push(event))
    realtime.onError((error) => errors.push(error))
    realtime.subscribe(ann.id, () => {})
    await sleep(500)
    const subject = `Live ${unique()}`
    await ann.send({ to: bob.address, subject, body: { text: 'now' } })
    for (let i = 0; i < 200 && !got.length; i++) await sleep(50)
    assert.equal(got[0].subject, subject)
    assert.equal(got[0].body, null)
    await got[0].fetchFullBody()
    assert.equal(got[0].body.trim(), 'now')
    assert.equal(all.length, 1)
    const received = events.find((event) => event.eventType === WEBHOOK_EVENTS.EMAIL_RECEIVED)
    assert.deepEqual([received.inboxId, received.data.subject], [bob.id, subject])
    for (let i = 0; i < 100 && !events.some((event) => event.eventType === WEBHOOK_EVENTS.EMAIL_SENT); i++) await sleep(50)
    assert.ok(events.some((event) => event.eventType === WEBHOOK_EVENTS.EMAIL_SENT && event.inboxId === ann.id))
    // No more of an inbox that was left.
    leave()
    await sleep(300)
    const count = all.length
    await ann.send({ to: bob.address, subject: `Quiet ${unique()}`, body: { text: 'x' } })
    await bob.waitForEmail({ filter: { subject: /^Quiet/ }, timeout: 20_000 })
    await sleep(300)
    assert.equal(all.length, count)
    // A foreign inbox is an error, and no event.
    const stranger = await signUp()
    const foreign = await stranger.createInbox()
    realtime.subscribe(foreign.id, () => {})
    for (let i = 0; i < 100 && !errors.length; i++) await sleep(50)
    assert.match(errors[0].message, /not_found/)
    await ann.send({ to: foreign.address, subject: 'Foreign', body: { text: 'x' } })
    await foreign.waitForEmail({ timeout: 20_000 })
    assert.equal(all.length, count)
    let ended = false
    realtime.onDisconnect(() => { ended = true })
    realtime.close()
    for (let i = 0; i < 100 && !ended; i++) await sleep(20)
    assert.equal(ended, true)
  })

  test('a connection of its own says when it is there, and comes back', async () => {
    const realtime = new RealtimeConnection(baseUrl.replace('http', 'ws'), client.token, client._http, { reconnectDelay: 100 })
    let connects = 0
    realtime.onConnect(() => connects++)
    const got = []
    realtime.subscribe(bob.id, (email) => got.push(email)) // before it is open
    await realtime.connect()
    assert.equal(connects, 1)
    realtime._ws.close() // as if the network had failed
    for (let i = 0; i < 200 && connects < 2; i++) await sleep(50)
    assert.equal(connects, 2)
    await sleep(500)
    await ann.send({ to: bob.address, subject: `Again ${unique()}`, body: { text: 'x' } })
    for (let i = 0; i < 200 && !got.length; i++) await sleep(50)
    assert.match(got[0].subject, /^Again/)
    realtime.close()
  })

  test('a WebSocket needs a valid token', async () => {
    for (const token of ['', 'lm_sk_live_x']) {
      const status = await new Promise((resolve) => {
        const socket = new WS(`${baseUrl.replace('http', 'ws')}/v1/ws?token=${token}`)
        socket.on('unexpected-response', (_, answer) => resolve(answer.statusCode))
        socket.on('open', () => resolve('open'))
        socket.on('error', () => {})
      })
      assert.equal(status, 401)
    }
  })

  test('a socket ends when its key is revoked', async () => {
    const box = await client.createInbox({ displayName: 'Revoked' })
    const made = await raw(client, 'POST', '/v1/inboxes', {})
    const socket = new WS(`${baseUrl.replace('http', 'ws')}/v1/ws?token=${made.json.token}`)
    const said = []
    socket.on('message', (text) => said.push(JSON.parse(text)))
    const closed = new Promise((resolve) => socket.on('close', (code) => resolve(code)))
    for (let i = 0; i < 100 && !said.length; i++) await sleep(20)
    assert.equal(said[0].type, 'authenticated')
    // Its own inbox, and not the other one of the account.
    socket.send(JSON.stringify({ type: 'subscribe', id: 'req_1', inbox_ids: [made.json.id, box.id] }))
    for (let i = 0; i < 100 && said.length < 3; i++) await sleep(20)
    assert.equal(said[1].type, 'error')
    assert.deepEqual(said[2], { type: 'subscribed', id: 'req_1', inbox_ids: [made.json.id] })
    await client.deleteInbox(made.json.id)
    socket.send(JSON.stringify({ type: 'subscribe', id: 'req_2', inbox_ids: [made.json.id] }))
    assert.equal(await closed, 4401)
    await client.deleteInbox(box.id)
  })

  // ---- webhooks ----

  test('webhooks are added, listed and deleted', async () => {
    const hook = await client.createWebhook({ url: 'https://hooks.example/x', inboxId: bob.id })
    assert.match(hook.id, /^wh_/)
    assert.match(hook.secret, /^whsec_/)
    assert.deepEqual(hook.events, ['email.received'])
    const { data } = await client.listWebhooks()
    const row = data.find((one) => one.id === hook.id)
    assert.deepEqual([row.url, row.enabled, row.secret], ['https://hooks.example/x', true, undefined])
    assert.equal((await raw(client, 'PATCH', `/v1/webhooks/${hook.id}`, { enabled: true })).json.enabled, true)
    await client.deleteWebhook(hook.id)
    assert.ok(!(await client.listWebhooks()).data.some((one) => one.id === hook.id))
    await refused(client.createWebhook({ url: 'ftp://x' }), LobsterMailError, 'invalid_request', /https/)
  })

  // ---- limits and borders ----

  test('a loop of sends meets 429', async () => {
    const box = await client.createInbox()
    let error
    for (let i = 0; i < 40 && !error; i++) {
      await box.send({ to: ann.address, subject: `Loop ${i}`, body: { text: `x ${i}` } }).catch((one) => { error = one })
    }
    assert.ok(error instanceof RateLimitError, String(error))
    await client.deleteInbox(box.id)
  })

  test('another account reaches nothing', async () => {
    const stranger = await signUp()
    const theirs = await stranger.createInbox()
    const [email] = (await bob.receive({ limit: 1 })).data
    const [thread] = (await bob.listThreads({ limit: 1 })).data
    const [one, two] = [bob.id, theirs.id]
    const texts = new Set()
    for (const path of [
      `/v1/inboxes/${one}`, `/v1/inboxes/${one}/emails`, `/v1/inboxes/${one}/emails/poll?timeout=1`,
      `/v1/inboxes/${one}/emails/${email.id}`, `/v1/inboxes/${two}/emails/${email.id}`,
      `/v1/inboxes/${one}/emails/${email.id}/attachments/0`, `/v1/inboxes/${one}/threads`,
      `/v1/inboxes/${one}/threads/${thread.id}`, `/v1/inboxes/${two}/threads/${thread.id}`,
      `/v1/emails/search?q=x&inboxId=${one}`, `/v1/inboxes/ibx_01JMXK9F2A0000000000000001/emails`,
    ]) {
      const { status, json } = await raw(stranger, 'GET', path)
      assert.deepEqual([status, json.error], [404, 'not_found'], path)
      texts.add(json.message)
    }
    assert.equal(texts.size, 1) // the same whether it exists or not
    await refused(stranger.deleteInbox(one), NotFoundError, 'not_found', /./)
    const forged = await raw(stranger, 'POST', '/v1/emails/send', {
      from: bob.address, to: [ann.address], subject: 'x', body: { text: 'x' },
    })
    assert.ok([403, 404].includes(forged.status), JSON.stringify(forged))
    assert.equal((await stranger.searchEmails({ q: 'Held' })).data.length, 0)
    // The inbox's own token reaches that inbox only.
    const made = await raw(client, 'POST', '/v1/inboxes', {})
    const own = await LobsterMail.create({ baseUrl, token: made.json.token, persistToken: false })
    assert.equal((await own.getInbox(made.json.id)).id, made.json.id)
    await refused(own.getInbox(bob.id), NotFoundError, 'not_found', /./)
    await client.deleteInbox(made.json.id)
  })

  test('a grant lets another inbox wait and listen, until it is revoked', async () => {
    const stranger = await signUp()
    const made = (await raw(stranger, 'POST', '/v1/inboxes', {})).json
    const watcher = await LobsterMail.create({ baseUrl, token: made.token, persistToken: false })
    const poll = (since) => raw(watcher, 'GET', `/v1/inboxes/${bob.id}/emails/poll?timeout=20&since=${since}`)
    const since = new Date().toISOString()
    assert.equal((await poll(since)).status, 404)
    const grant = await operate('POST', '/mail/grants', {
      to: made.address, inbox: bob.address, verbs: ['list', 'read'], expires_s: 600, reason: 'a test',
    })
    await bob.receive({ limit: 1 }) // its own credential makes the grant effective
    const realtime = await watcher.connect({ autoReconnect: false })
    const got = [], errors = []
    realtime.subscribe(bob.id, (email) => got.push(email))
    realtime.onError((error) => errors.push(error))
    const waits = poll(since)
    await sleep(500)
    const subject = `Granted ${unique()}`
    await ann.send({ to: bob.address, subject, body: { text: 'x' } })
    assert.equal((await waits).json.data[0].subject, subject)
    for (let i = 0; i < 200 && !got.length; i++) await sleep(50)
    assert.equal(got[0].subject, subject)
    await operate('DELETE', `/mail/grants/${grant.id}`)
    assert.equal((await poll(since)).status, 404)
    await ann.send({ to: bob.address, subject: `Ungranted ${unique()}`, body: { text: 'x' } })
    await bob.waitForEmail({ filter: { subject: /^Ungranted/ }, timeout: 20_000 })
    await sleep(500)
    assert.equal(got.length, 1)
    assert.deepEqual(errors, [])
    realtime.close()
  })

  // ---- what a self-hosted server has not ----

  test('what is not served has a typed error', async () => {
    const [email] = (await bob.receive({ limit: 1, direction: 'inbound' })).data
    const absent = [
      [() => email.extract(), /model/],
      [() => email.waitForExtraction({ timeout: 1000 }), /model/],
      [() => client.verify({ provider: 'x', handle: '@me' }), /verif/],
      [() => client.addDomain({ domain: 'mine.example' }), /domain/],
      [() => client.listDomains(), /domain/],
      [() => client.getDomain('dom_1'), /domain/],
      [() => client.verifyDomain('dom_1'), /domain/],
      [() => client.deleteDomain('dom_1'), /domain/],
      [() => new Domain({ id: 'dom_1' }, client._http).verify(), /domain/],
    ]
    for (const [call, text] of absent) await refused(call(), LobsterMailError, 'not_implemented', text)
    assert.equal(await email.getExtraction(), null)
  })

  test('every method of the client is tried here', () => {
    const text = readFileSync(new URL(import.meta.url), 'utf8')
    for (const kind of [LobsterMail, Inbox, Email, Domain, RealtimeConnection])
      for (const name of Object.getOwnPropertyNames(kind.prototype))
        if (name !== 'constructor' && !name.startsWith('_') && typeof Object.getOwnPropertyDescriptor(kind.prototype, name).value === 'function')
          assert.match(text, new RegExp(`\\.${name}\\(`), `${kind.name}.${name} is not tried`)
  })
})

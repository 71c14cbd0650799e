// Package resume lets answers outlive their connections. A client that loses its
// connection comes back for its answer, on any replica, and the model is not asked
// again while that answer runs or is kept; a client that has seen enough stops the
// model.
//
//	answers := resume.New(resume.Options{Engine: engine})
//	api := botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: answers, Routes: answers.Routes(), OnLimit: answers.OnLimit})
//	http.Handle("/", api)
//	...
//	server.Shutdown(ctx)
//	answers.Close(ctx) // with a store in memory, a context that has ended
//
// # Contract
//
// A client that wants this sends an Idempotency-Key with its chat: 16 to 255
// letters, digits, - and _, which it chooses at random for each answer. Without a
// key nothing changes: the model stops when the client disconnects.
//
//   - A client that disconnects may come back for [Settings].Abandon (1 minute) with
//     the same request, on any process that shares the [Store]. It gets the answer
//     from its first fragment, complete or still running: it replaces what it had,
//     and does not append. The model of an answer that nobody follows for that long is
//     cancelled.
//   - A complete answer is kept for Keep (2 minutes), or longer while clients
//     fetch it. One that has failed, or that nobody came back for, is not kept: the
//     next request with its key asks the model again. Those who follow an answer when
//     it fails get all of its text and its error.
//   - DELETE /v1/answers with the Idempotency-Key stops the model immediately; then
//     the key is a 410 for Keep. It does not change an answer that is complete: one that
//     the store does not know to be complete yet is stopped, for all its readers
//     that have not got its end. "Regenerate", and another try after a stop, use a new key.
//   - Another body under a key is a 409, but for the spacing and the order of members
//     of JSON that the API does not define. Joining by key alone, with [Engine.Join],
//     is a 404 if there is no answer.
//   - Nobody sees, joins, stops or learns of an answer of another owner
//     ([Options].Owner; by default the account).
//   - The response header X-Botapi-Answer is kept, joined or not-kept. An answer is
//     not kept, and answered as one without a key, if there is no room for it or the
//     store does not answer within Wait (1 second). One that outgrows its room goes on for
//     those who follow it in its process; who comes later starts anew.
//   - A running answer keeps the slot of the chat that started it until its model has
//     returned, with or without readers: it counts against MaxConcurrentChats and
//     MaxChatsPerAccount of botapi. So does its slot in the store against Running and
//     RunningPerOwner, which count in all processes. Too many of them, too many readers and readers that come back too
//     often are a 429 with Retry-After.
//   - A client that comes back when a limit of botapi is reached shares a slot that its key
//     has in this process, that of its answer or of a reader ([Engine.OnLimit]). It
//     disconnects nobody.
//   - ChatTimeout and StallTimeout of [Options], by default those of botapi.Options,
//     bound the model's work; those of botapi.Options bound each reader, and an answer
//     that is not kept.
//   - OnAnswer is called once for each call of the model, when it has returned and, if the
//     answer is complete, the store knows that or has not said it within Wait. Bill there, and
//     not in OnChat, which is called for each reader.
//   - A key of the API that is revoked does not end the answers that were started
//     with it; joining them needs a valid one.
//   - A reader that is slow delays neither the model nor other readers, as long as the store
//     takes the answer.
package resume

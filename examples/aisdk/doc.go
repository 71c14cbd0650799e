// Package aisdk serves the chats of useChat, the hook of Vercel's AI SDK. In the page,
// DefaultChatTransport needs the address and a key:
//
//	useChat({ transport: new DefaultChatTransport({
//		api: "/api/chat?bot=mira", headers: { Authorization: `Bearer ${key}` } }) })
//
// and in the service, the handler serves what it asks for:
//
//	options.Routes = aisdk.Routes(aisdk.Options{})
//	http.Handle("/", botapi.New(options))
//
// # Answers that outlive their connections
//
//	answers := aisdk.NewAnswers(resume.Options{Engine: engine})
//	options.Engine, options.OnLimit = answers, answers.OnLimit
//	options.Routes = aisdk.Routes(aisdk.Options{Answers: answers})
//
// With [Options].Answers, an answer goes on when its page is reloaded or loses its
// connection, and useChat({ resume: true }) finds it by the id of the chat. The rules
// are those of package resume, and these:
//
//   - Each POST starts an answer under a random key of its own, so "regenerate" and the
//     next turn never meet an earlier answer. The latest answer of a chat is that of the
//     last POST whose engine was called: a rejected POST (429, 503, a mistake in its
//     body) changes nothing.
//   - A chat belongs to the owner who sends it ([resume.Options].Owner; by default the
//     account). The same chat id of another owner is another chat, so nobody can read,
//     stop, replace or learn of the answer of another owner. Within one owner, all who
//     know the id of a chat share it. So if one API key serves many people, set Owner.
//   - GET /api/chat/{id}/stream sends the latest answer from its first fragment, complete
//     or still running, under the message id that it had: useChat replaces what it has
//     of that message, and does not append. It is a 204 if there is nothing to send: no
//     answer, one that has failed or was stopped, or one that is no longer kept.
//   - DELETE /api/chat/{id}/stream stops the latest answer; the response is a 204, or a 404
//     if there is none. With ?messageId=ID it stops the answer only if that is its
//     message: a DELETE that arrives late cannot stop an answer that was regenerated
//     meanwhile. useChat's stop() only disconnects, so a Stop button sends both.
//   - Two pages with the same chat follow the same answer. If both send a message, there
//     are two answers: each page reads its own, and a page that is loaded after that
//     finds the one that began last.
package aisdk

// Package botapitest tests what an application puts around a botapi handler.
//
// [Check] mounts a handler as the application does, with its router and its middleware, and
// checks each promise of docs/wire.md that these can break:
//
//	func TestMounting(t *testing.T) {
//		botapitest.Check(t, func(api http.Handler) http.Handler { return newMux(api) })
//	}
//
// What is in front of a running service, a proxy or a load balancer, is checked from outside:
//
//	go run ./examples/doctor https://chat.example.com --key KEY --secret SECRET
//
// for which the service has a probe in front of its engine: [Probed].
//
// docs/operating.md lists what both can find.
package botapitest

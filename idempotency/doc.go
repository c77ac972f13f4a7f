// Package idempotency lets clients of an HTTP service repeat a request safely. A client sends the
// header Idempotency-Key with a request. The first request with a key takes effect. A repeated
// request gets the stored answer of the first request, even if the two requests arrive at the same
// time in different processes.
//
// The key and the answer are stored in the transaction of the handler, with its business rows and
// its events. So an answer is stored if and only if the request took effect.
//
//	keys, err := idempotency.New(db, idempotency.Config{
//		Client: func(r *http.Request) string { return userOf(r) },
//	})
//	mux.Handle("POST /orders", keys.Handler(placeOrder))
//
// The package follows draft-ietf-httpapi-idempotency-key-header-07:
//
//	the key was used for another request        422
//	a request with the key is being handled     409
//	the key is missing and Config.Required      400
//	the key or the client's id is not valid     400
//
// These answers are of the type application/problem+json (RFC 9457).
package idempotency

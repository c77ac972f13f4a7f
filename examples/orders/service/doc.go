// Package service is an order service to copy: orders come in over HTTP, their
// events leave through the outbox, and seven consumers do their part once.
//
//	POST /orders ── one transaction: idempotency key, order, lines, events
//	                    │ forwarder
//	              orders.placed ──┬─ payments ── one transaction: payment, events
//	                              │                  │ forwarder
//	                              │            payments.captured ─── shipping, revenue, notifications
//	                              └─ inventory
//	              orders.changed ─── history, tracking; payments and shipping publish it too
//
// [New] puts it together, [Service.Run] starts it and stops it in order.
// [Subscriptions] are the consumers, each set up as its work wants it.
package service

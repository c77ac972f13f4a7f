// Package service is an order service to copy. Orders arrive over HTTP, their
// events leave through the outbox, and seven consumers handle each event once.
//
//	POST /orders ── one transaction: idempotency key, order, lines, events
//	                    │ forwarder
//	              orders.placed ──┬─ payments ── one transaction: payment, events
//	                              │                  │ forwarder
//	                              │            payments.captured ─── shipping, revenue, notifications
//	                              └─ inventory
//	              orders.changed ─── history, tracking; payments and shipping publish this topic too
//
// [New] builds the service. [Service.Run] starts its parts and stops them in
// order. [Subscriptions] lists the consumers.
package service

// Package service is an order service to copy. Orders arrive over HTTP, their
// events leave through the outbox, and nine consumers handle each event once.
//
//	POST /orders ── one transaction: idempotency key, order, lines, events
//	    │ orders.placed
//	payments ────── one transaction: payment, events; the bank gets a key
//	    │ payments.captured                  │ mails.intended
//	inventory ───── enough stock?            notifications: a mail
//	    ├─ yes: stock.reserved ──▶ shipping, revenue
//	    └─ no: stock.refused ──▶ refunds ── payments.refunded ──▶ cancellations
//
//	orders.changed, at each step of an order ──▶ history, tracking
//
// It consists of two services, [Orders] and [Payments]. One process can run both with
// one database, or each service runs alone with its own database, see
// [Config.Services].
//
// [New] builds the service. [Service.Run] starts its parts and stops them in
// order. [Subscriptions] lists the consumers.
package service

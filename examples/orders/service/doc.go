// Package service is an order service to copy: orders come in over HTTP, their
// events leave through the outbox, and four consumers do their part once.
//
//	POST /orders ── one transaction: idempotency key, order, lines, event "orders.placed"
//	                                                     │ forwarder
//	                      ┌──────────────────────────────┴───┐
//	                  payments                           inventory
//	      one transaction: payment, event            reservation, stock
//	      "payments.captured"
//	                      │ forwarder
//	           ┌──────────┴─────────┐
//	       shipping           notifications
//	       shipment           a mail, with the message id as idempotency key
//
// [New] puts it together, [Service.Run] starts it and stops it in order.
package service

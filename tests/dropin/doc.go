// Package dropin tests the consumer's middlewares on existing routers: with
// Watermill's own Pub/Subs, per router and per handler, with the cqrs
// component, and with other middlewares.
package dropin

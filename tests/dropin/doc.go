// Package dropin puts the consumer's middlewares on routers as people have
// them: with stock Pub/Subs, per router and per handler, with the cqrs
// component, beside other middleware.
package dropin

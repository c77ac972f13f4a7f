// Package eventbus tests package eventbus with Watermill's cqrs component. It is not in the
// library's module, because that component needs modules that the library does not need.
package eventbus

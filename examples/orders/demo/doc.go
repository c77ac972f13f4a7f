// Package demo drives the order service from outside, does it harm, and counts
// what came of it. None of it belongs into a service of yours.
package demo

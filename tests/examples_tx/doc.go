// Package examplestx shows how to use a handler's transaction with common database libraries, and
// tests that their writes take effect together with the message, or not at all. The library itself
// does not import these libraries.
package examplestx

// Package examplestx shows how to use a handler's transaction with common
// database libraries, and that their writes take effect with the message or not
// at all. The library itself does not import them.
package examplestx

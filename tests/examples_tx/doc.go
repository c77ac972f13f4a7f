// Package examplestx shows a handler's transaction in the hands of the usual
// database libraries, and that what they write takes effect with the message or
// not at all. The library itself needs none of them.
package examplestx

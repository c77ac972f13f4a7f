package chain

import (
	"reflect"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Code says to which part of a chain a function belongs.
type Code struct {
	Part    string // package name, or "" if the function belongs to no part
	Batches bool   // whether the function collects messages into batches
}

var codes sync.Map //nolint:gochecknoglobals // pointer to the code of a function -> Code

// Register records that middlewares belong to a part. A router has functions only, so
// once.Plugin recognizes a middleware by the pointer to its code. Method values such as
// inbox.Middleware have the same code for all inboxes.
func Register(code Code, middlewares ...message.HandlerMiddleware) {
	for _, m := range middlewares {
		codes.Store(reflect.ValueOf(m).Pointer(), code)
	}
}

// Registered is like [Register], for a handler that a middleware returns. It returns h.
func Registered(part string, h message.HandlerFunc) message.HandlerFunc {
	codes.Store(reflect.ValueOf(h).Pointer(), Code{Part: part})
	return h
}

// CodeAt returns the Code of the function whose code is at pointer.
func CodeAt(pointer uintptr) Code {
	code, _ := codes.Load(pointer)
	c, _ := code.(Code)
	return c
}

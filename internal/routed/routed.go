// Package routed looks at what was added to a Watermill router. The router
// shows no more than the names of its handlers, so this reads its fields. It is
// the only package that does.
package routed

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Handler is a handler of a router.
type Handler struct {
	Name         string
	Topic        string // that it subscribes to
	PublishTopic string // of the messages that it returns, or ""
	Subscriber   message.Subscriber

	// Chain is the router's middleware for it, then its own, then its function,
	// from the outside in.
	Chain []Func
}

// Func is a function: its name with the package, and the file that has it.
type Func struct{ Name, File string }

// Handlers returns the handlers of router, sorted by name. It fails if the
// router of this version of Watermill has other fields. It must not be called
// while handlers are added.
func Handlers(router *message.Router) (found []Handler, err error) {
	defer func() { // reflect panics where a field is not as expected
		if value := recover(); value != nil {
			found, err = nil, fmt.Errorf("the fields of Watermill's router are not known: %v", value)
		}
	}()
	r := reflect.ValueOf(router).Elem()
	middlewares := r.FieldByName("middlewares")
	for _, entry := range fields(r, "handlers", reflect.Map).MapKeys() {
		h := r.FieldByName("handlers").MapIndex(entry).Elem()
		handler := Handler{
			Name:         h.FieldByName("name").String(),
			Topic:        h.FieldByName("subscribeTopic").String(),
			PublishTopic: h.FieldByName("publishTopic").String(),
			Subscriber:   subscriberIn(fields(h, "subscriber", reflect.Interface)),
		}
		for i := range middlewares.Len() {
			m := middlewares.Index(i)
			if m.FieldByName("IsRouterLevel").Bool() || m.FieldByName("HandlerName").String() == handler.Name {
				handler.Chain = append(handler.Chain, function(m.FieldByName("Handler")))
			}
		}
		handler.Chain = append(handler.Chain, function(h.FieldByName("handlerFunc")))
		found = append(found, handler)
	}
	slices.SortFunc(found, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

func fields(of reflect.Value, name string, kind reflect.Kind) reflect.Value {
	field := of.FieldByName(name)
	if !field.IsValid() || field.Kind() != kind {
		panic(fmt.Sprintf("%v has no %v %q", of.Type(), kind, name))
	}
	return field
}

func function(f reflect.Value) Func {
	pc := f.Pointer()
	if pc == 0 {
		return Func{}
	}
	code := runtime.FuncForPC(pc)
	file, _ := code.FileLine(pc)
	return Func{Name: code.Name(), File: file}
}

// subscriberIn returns the subscriber that a field holds, or nil. reflect gives
// the value of an unexported field only through its address.
func subscriberIn(field reflect.Value) message.Subscriber {
	sub, _ := reflect.TypeAssert[message.Subscriber](reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
	return sub
}

// deepest bounds how many wrappers are looked into.
const deepest = 10

// Find returns the first T among sub and the subscribers that it wraps. A
// wrapper is seen if it is a pointer to a struct that holds the other in a
// field whose type is a subscriber.
func Find[T any](sub message.Subscriber) (found T, ok bool) {
	return find[T](sub, deepest)
}

func find[T any](sub message.Subscriber, depth int) (found T, ok bool) {
	if found, ok = sub.(T); ok || depth == 0 {
		return found, ok
	}
	v := reflect.ValueOf(sub)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return found, false
	}
	for _, field := range v.Elem().Fields() {
		if field.Type().Implements(reflect.TypeFor[message.Subscriber]()) && !isNil(field) {
			if found, ok = find[T](subscriberIn(field), depth-1); ok {
				return found, ok
			}
		}
	}
	return found, false
}

func isNil(v reflect.Value) bool {
	return (v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer) && v.IsNil()
}

package once

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
)

type routed struct {
	Name         string
	Topic        string // topic of the subscription
	PublishTopic string // topic of returned messages, or ""
	Subscriber   message.Subscriber

	// Chain contains the middlewares, and the handler's function, from the outside in.
	Chain []routedFunc
}

type routedFunc struct {
	Name string // with its package

	chain.Code
}

// routedHandlers returns the handlers of router with their middlewares, sorted by name. The API
// returns only names, so this function reads unexported fields, and returns an error if Watermill's
// router has others. Do not call it while handlers are being added.
func routedHandlers(router *message.Router) (found []routed, err error) {
	defer func() { // reflect panics if a field has another type
		if value := recover(); value != nil {
			found, err = nil, fmt.Errorf("this version of Watermill's router has unknown fields: %v", value)
		}
	}()
	r := reflect.ValueOf(router).Elem()
	middlewares := r.FieldByName("middlewares")
	for _, entry := range routerField(r, "handlers", reflect.Map).MapKeys() {
		h := r.FieldByName("handlers").MapIndex(entry).Elem()
		handler := routed{
			Name:         h.FieldByName("name").String(),
			Topic:        h.FieldByName("subscribeTopic").String(),
			PublishTopic: h.FieldByName("publishTopic").String(),
			Subscriber:   subscriberIn(routerField(h, "subscriber", reflect.Interface)),
		}
		for i := range middlewares.Len() {
			m := middlewares.Index(i)
			if m.FieldByName("IsRouterLevel").Bool() || m.FieldByName("HandlerName").String() == handler.Name {
				handler.Chain = append(handler.Chain, routedFunction(m.FieldByName("Handler")))
			}
		}
		handler.Chain = append(handler.Chain, routedFunction(h.FieldByName("handlerFunc")))
		found = append(found, handler)
	}
	slices.SortFunc(found, func(a, b routed) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

func routerField(of reflect.Value, name string, kind reflect.Kind) reflect.Value {
	field := of.FieldByName(name)
	if !field.IsValid() || field.Kind() != kind {
		panic(fmt.Sprintf("%v has no %v %q", of.Type(), kind, name))
	}
	return field
}

func routedFunction(f reflect.Value) routedFunc {
	pc := f.Pointer()
	if pc == 0 {
		return routedFunc{}
	}
	return routedFunc{Name: runtime.FuncForPC(pc).Name(), Code: chain.CodeAt(pc)}
}

// Package reflect reads the value of an unexported field only through its address.
func subscriberIn(field reflect.Value) message.Subscriber {
	sub, _ := reflect.TypeAssert[message.Subscriber](reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
	return sub
}

const maxDepth = 10

// findSubscriber returns the first subscriber of type T among sub and those that it wraps, as a
// pointer to a struct with a field that implements message.Subscriber.
func findSubscriber[T any](sub message.Subscriber) (found T, ok bool) {
	return findWithin[T](sub, maxDepth)
}

func findWithin[T any](sub message.Subscriber, depth int) (found T, ok bool) {
	if found, ok = sub.(T); ok || depth == 0 {
		return found, ok
	}
	v := reflect.ValueOf(sub)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return found, false
	}
	for _, field := range v.Elem().Fields() {
		if field.Type().Implements(reflect.TypeFor[message.Subscriber]()) && !isNil(field) {
			if found, ok = findWithin[T](subscriberIn(field), depth-1); ok {
				return found, ok
			}
		}
	}
	return found, false
}

func isNil(v reflect.Value) bool {
	return (v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer) && v.IsNil()
}

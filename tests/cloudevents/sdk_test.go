package cloudevents

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// fromSDK returns the AMQP message of an event, written by the SDK. Its own binding is for AMQP 1.0, so
// this one writes the same attributes for AMQP 0.9.1.
func fromSDK(ctx context.Context, e event.Event, prefix string, structured bool) (amqp091.Publishing, error) {
	w := &writer{prefix: prefix, publishing: amqp091.Publishing{Headers: amqp091.Table{}}}
	if structured {
		ctx = binding.WithForceStructured(ctx)
	}
	_, err := binding.Write(ctx, (*binding.EventMessage)(&e), w, w)
	return w.publishing, err
}

type writer struct {
	prefix     string
	publishing amqp091.Publishing
}

func (w *writer) SetStructuredEvent(_ context.Context, f format.Format, event io.Reader) error {
	w.publishing.ContentType = f.MediaType()
	return w.SetData(event)
}

func (w *writer) Start(context.Context) error { return nil }
func (w *writer) End(context.Context) error   { return nil }

func (w *writer) SetAttribute(a spec.Attribute, value any) error {
	if value == nil {
		return nil
	}
	text, err := types.Format(value)
	if a.Kind() == spec.DataContentType {
		w.publishing.ContentType = text
	} else {
		w.publishing.Headers[w.prefix+a.Name()] = text
	}
	return err
}

func (w *writer) SetExtension(name string, value any) error {
	w.publishing.Headers[w.prefix+name] = fmt.Sprint(value)
	return nil
}

func (w *writer) SetData(data io.Reader) (err error) {
	w.publishing.Body, err = io.ReadAll(data)
	return err
}

// toSDK returns the event in an AMQP message, read and validated by the SDK.
func toSDK(ctx context.Context, d amqp091.Delivery) (event.Event, error) {
	e, err := binding.ToEvent(ctx, reader{d})
	if err != nil {
		return event.Event{}, err
	}
	return *e, e.Validate()
}

var versions = spec.WithPrefix("cloudEvents:")

type reader struct{ amqp091.Delivery }

func (r reader) ReadEncoding() binding.Encoding {
	switch {
	case format.IsFormat(r.ContentType):
		return binding.EncodingStructured
	case r.version() != nil:
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (r reader) version() spec.Version { //nolint:ireturn // the SDK has only the interface
	name, _ := r.Headers["cloudEvents:specversion"].(string)
	return versions.Version(name)
}

func (r reader) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if r.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, format.Lookup(r.ContentType), bytes.NewReader(r.Body))
}

func (r reader) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	version := r.version()
	if version == nil {
		return binding.ErrNotBinary
	}
	if err := w.SetAttribute(version.AttributeFromKind(spec.DataContentType), r.ContentType); err != nil {
		return err
	}
	for key, value := range r.Headers {
		var err error
		if a := version.Attribute(key); a != nil {
			err = w.SetAttribute(a, value)
		} else if name, ok := bytes.CutPrefix([]byte(key), []byte("cloudEvents:")); ok {
			err = w.SetExtension(string(name), value)
		}
		if err != nil {
			return err
		}
	}
	return w.SetData(bytes.NewReader(r.Body))
}

func (r reader) GetAttribute(kind spec.Kind) (spec.Attribute, any) { //nolint:ireturn // the SDK has only the interface
	a := r.version().AttributeFromKind(kind)
	return a, r.Headers["cloudEvents:"+a.Name()]
}

func (r reader) GetExtension(name string) any { return r.Headers["cloudEvents:"+name] }

func (r reader) Finish(error) error { return nil }

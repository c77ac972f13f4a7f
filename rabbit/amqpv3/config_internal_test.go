package amqpv3

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Every field of the Config of v3 reaches the Config of v2. A field that a later version
// adds to v3 fails this test until it is converted.
func TestEveryFieldIsConverted(t *testing.T) {
	var config amqp.Config
	fill(reflect.ValueOf(&config).Elem(), "Config")
	config.Marshaler, config.TopologyBuilder = &amqp.DefaultMarshaler{}, &amqp.DefaultTopologyBuilder{}
	got := converted(config)
	builder, ok := got.TopologyBuilder.(*topologyBuilder)
	if !ok || builder.config.TopologyBuilder != config.TopologyBuilder {
		t.Errorf("the TopologyBuilder is %#v, want an adapter of %#v", got.TopologyBuilder, config.TopologyBuilder)
	}
	compare(t, reflect.ValueOf(config), reflect.ValueOf(got), "Config")
}

// A Config with zero values stays one, so that package rabbit reports or replaces them.
func TestZeroValuesAreConverted(t *testing.T) {
	got := converted(amqp.Config{})
	if builder, ok := got.TopologyBuilder.(*topologyBuilder); !ok || builder.config.TopologyBuilder == nil {
		t.Errorf("the TopologyBuilder is %#v, want an adapter of the default", got.TopologyBuilder)
	}
	got.TopologyBuilder = nil
	if !reflect.ValueOf(got).IsZero() {
		t.Errorf("got %+v, want the zero value", got)
	}
}

// The TopologyBuilder of v3 receives the Config of v3 with the changes of package rabbit.
func TestTopologyBuilderReceivesTheConfigOfV3(t *testing.T) {
	var config amqp.Config
	fill(reflect.ValueOf(&config).Elem(), "Config")
	of := new(recorder)
	config.TopologyBuilder = of
	changed := converted(config)
	changed.Queue.Arguments = amqp091.Table{"x-delivery-limit": int32(-1)}
	changed.Exchange.Durable = false
	builder := newTopologyBuilder(config)
	if err := builder.BuildTopologyOfTopic(nil, "topic", "queue", "exchange", changed, nil); err != nil {
		t.Fatal(err)
	}
	want := amqp.BuildTopologyParams{
		Topic: "topic", QueueName: "queue", ExchangeName: "exchange", RoutingKey: config.QueueBind.GenerateRoutingKey("topic"),
	}
	if of.params != want {
		t.Errorf("the parameters are %+v, want %+v", of.params, want)
	}
	compare(t, reflect.ValueOf(of.config), reflect.ValueOf(changed), "Config")
	if err := builder.ExchangeDeclare(nil, "exchange", changed); err != nil {
		t.Fatal(err)
	}
	if of.exchange != "exchange" || of.config.Exchange.Durable {
		t.Errorf("declared exchange %q, durable %t; want \"exchange\", false", of.exchange, of.config.Exchange.Durable)
	}
}

// fill sets every field of a struct to a value that only this field has.
func fill(value reflect.Value, path string) {
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			field := value.Type().Field(i)
			if field.IsExported() && value.Type().PkgPath() == reflect.TypeFor[amqp.Config]().PkgPath() {
				fill(value.Field(i), path+"."+field.Name)
			}
		}
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), path)
	case reflect.Func:
		value.Set(reflect.MakeFunc(value.Type(), func(args []reflect.Value) []reflect.Value {
			return []reflect.Value{reflect.ValueOf(path + " of " + args[0].String())}
		}))
	case reflect.Map:
		value.Set(reflect.ValueOf(amqp091.Table{"x-field": path}))
	case reflect.String:
		value.SetString(path)
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int64:
		value.SetInt(int64(len(path)))
	case reflect.Float64:
		value.SetFloat(float64(len(path)))
	case reflect.Interface: // the test sets it
	default:
		panic(fmt.Sprintf("%s has the kind %v: add it", path, value.Kind()))
	}
}

// compare compares the fields of both structs by their names.
func compare(t *testing.T, v3, v2 reflect.Value, path string) {
	t.Helper()
	switch v3.Kind() {
	case reflect.Struct:
		if v3.Type().PkgPath() != reflect.TypeFor[amqp.Config]().PkgPath() {
			return
		}
		if v3.NumField() != v2.NumField() {
			t.Errorf("%s has %d fields in v3 and %d in v2", path, v3.NumField(), v2.NumField())
		}
		for i := range v3.NumField() {
			name := v3.Type().Field(i).Name
			of := v2.FieldByName(name)
			if !of.IsValid() {
				t.Errorf("%s.%s is only in v3", path, name)
				continue
			}
			compare(t, v3.Field(i), of, path+"."+name)
		}
	case reflect.Pointer:
		if v2.IsNil() {
			t.Errorf("%s is nil", path)
			return
		}
		if v3.Pointer() != v2.Pointer() {
			t.Errorf("%s points to another value", path)
		}
	case reflect.Func:
		argument := []reflect.Value{reflect.ValueOf("topic")}
		if v2.IsNil() || v3.Call(argument)[0].String() != v2.Call(argument)[0].String() {
			t.Errorf("%s is another function", path)
		}
	case reflect.Interface:
		if path == "Config.TopologyBuilder" {
			return // it is an adapter
		}
		if v3.Interface() != v2.Interface() {
			t.Errorf("%s is %v, want %v", path, v2, v3)
		}
	default:
		if !reflect.DeepEqual(v3.Interface(), v2.Interface()) {
			t.Errorf("%s is %v, want %v", path, v2, v3)
		}
	}
}

// recorder is a TopologyBuilder that only keeps its arguments.
type recorder struct {
	params   amqp.BuildTopologyParams
	exchange string
	config   amqp.Config
}

func (r *recorder) BuildTopology(
	_ *amqp091.Channel, params amqp.BuildTopologyParams, config amqp.Config, _ watermill.LoggerAdapter,
) error {
	r.params, r.config = params, config
	return nil
}

func (r *recorder) ExchangeDeclare(_ *amqp091.Channel, exchange string, config amqp.Config) error {
	r.exchange, r.config = exchange, config
	return nil
}

var _ amqpv2.TopologyBuilder = (*topologyBuilder)(nil)

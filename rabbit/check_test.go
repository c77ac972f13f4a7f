package rabbit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

func TestCheckNamesWhatRabbitMQCannotTake(t *testing.T) {
	long := strings.Repeat("x", 256)
	controls := func(key string) string { return `metadata "` + key + `" would control RabbitMQ: rename it` }
	for name, c := range map[string]struct {
		metadata message.Metadata
		kind     error
		want     string
	}{
		"none":     {nil, nil, ""},
		"harmless": {message.Metadata{"xylophone": "not x-", "account": "not cc", long[:255]: strings.Repeat("y", 60<<10)}, nil, ""},
		"copies":   {message.Metadata{"BCC": "hunter2"}, rabbit.ErrInvalid, controls("BCC")},
		"a user":   {message.Metadata{"User_Id": "hunter2"}, rabbit.ErrInvalid, controls("User_Id")},
		"lifetime": {message.Metadata{"expiration": "1"}, rabbit.ErrInvalid, controls("expiration")},
		"several": {
			message.Metadata{"x-b": "1", "cc": "q", "x-c": "", "bcc": "", "x-a": ""},
			rabbit.ErrInvalid,
			strings.Join([]string{controls("bcc"), controls("cc"), controls("x-a"), controls("x-b"), controls("x-c")}, "; "),
		},
		"long name": {message.Metadata{long: ""}, rabbit.ErrTooLarge, `metadata "` + long[:64] + `"... is a key of 256 bytes, the limit is 255`},
		"much":      {message.Metadata{"a": strings.Repeat("y", 64<<10)}, rabbit.ErrTooLarge, `metadata has 65543 bytes, the limit is 65536`},
	} {
		msg := newMessage("m")
		msg.Metadata = c.metadata
		err := rabbit.Check("topic", msg)
		if c.kind == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var unacceptable interface{ Unacceptable() bool }
		if !errors.Is(err, c.kind) || err.Error() != c.kind.Error()+": "+c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if !errors.As(err, &unacceptable) || !unacceptable.Unacceptable() {
			t.Errorf("%s: %v is not unacceptable", name, err)
		}
	}
}

// Trap 32. If outbox.Config.Check is rabbit.Check, the producer gets the error, and no
// message is stored.
func TestOutboxWithCheckRefusesSteeringMetadata(t *testing.T) {
	box, err := outbox.New(outbox.Config{Check: rabbit.Check})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"BCC", "cc", "X-Delay", "x-request-id", "user-id", "User_Id", "expiration"} {
		msg := newMessage("m")
		msg.Metadata.Set(key, "1")
		_, _, err := box.Statements(t.Context(), "topic", msg)
		if !errors.Is(err, outbox.ErrInvalid) || !errors.Is(err, rabbit.ErrInvalid) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

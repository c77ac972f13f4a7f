package amqpwire

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// With some codes the broker closes only the channel. With all other codes it closes
// the whole connection.
func TestCodesOfTheBrokerCloseAChannelOrTheConnection(t *testing.T) {
	t.Parallel()
	for code, onlyChannel := range map[int]bool{
		311: true, 312: true, 313: true, 403: true, 404: true, 405: true, 406: true,
		320: false, 402: false, 501: false, 502: false, 503: false, 504: false, 505: false, 506: false, 530: false, 540: false, 541: false,
	} {
		got := closeReason(append([]byte{byte(code >> 8), byte(code)}, "\x03why\x00\x3c\x00\x28"...))
		if want := (amqp.Error{Code: code, Reason: "why", Server: true, Recover: onlyChannel}); *got != want {
			t.Errorf("got %+v, want %+v", *got, want)
		}
	}
}

// A message that is returned in several frames is complete when its last byte arrives.
// The number of the publish comes from a header of the message, and is 0 without this
// header.
func TestReturnIsCompleteWithItsLastByte(t *testing.T) {
	t.Parallel()
	_, ch, _ := connOn(nil)
	header := func(size byte, rest string) frame {
		return frame{kind: frameHeader, channel: 9, payload: append([]byte{0, classBasic, 0, 0, 0, 0, 0, 0, 0, 0, 0, size}, rest...)}
	}
	body := func(size int) frame { return frame{kind: frameBody, channel: 9, payload: make([]byte, size)} }
	begin := parseFrame(appendMethod(nil, 9, basicReturn, append([]byte{0x01, 0x38}, "\x08NO_ROUTE\x00\x01q"...)...))
	for _, f := range []frame{begin, header(10, "\x00\x00"), body(4), body(5)} {
		if err := ch.receive(f); err != nil {
			t.Fatal(err)
		}
		if responses, _ := ch.TakeResponses(nil); len(responses) != 0 {
			t.Fatalf("got %v before the last byte", responses)
		}
	}
	if err := ch.receive(body(2)); !errors.Is(err, errBadFrame) {
		t.Errorf("a body that is too long: %v", err)
	}
	if err := ch.receive(body(1)); err != nil {
		t.Fatal(err)
	}
	want := []Response{{Kind: Return, Code: 312, Text: "NO_ROUTE"}}
	if responses, _ := ch.TakeResponses(nil); !slices.Equal(responses, want) {
		t.Errorf("got %v, want %v", responses, want)
	}
	if err := ch.receive(body(1)); !errors.Is(err, errBadFrame) {
		t.Errorf("a body behind the last one: %v", err)
	}
}

// After Close, the channel sends one close, and drops all responses that arrive.
func TestClosedChannelIgnoresResponses(t *testing.T) {
	t.Parallel()
	c, ch, _ := connOn(nil)
	if err := ch.receive(parseFrame(appendMethod(nil, 9, channelOpenOk, 0, 0, 0, 0))); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second confirm.select-ok changes nothing
		if err := ch.receive(parseFrame(appendMethod(nil, 9, confirmSelectOk))); err != nil {
			t.Fatal(err)
		}
		if err := ch.WaitOpen(); err != nil {
			t.Fatal(err)
		}
	}
	ack := parseFrame(appendMethod(nil, 9, basicAck, 0, 0, 0, 0, 0, 0, 0, 7, 2)) // only the lowest bit means multiple
	nack := parseFrame(appendMethod(nil, 9, basicNack, 0, 0, 0, 0, 0, 0, 0, 8, 3))
	receive := func() []Response {
		t.Helper()
		for _, f := range []frame{ack, nack} {
			if err := ch.receive(f); err != nil {
				t.Fatal(err)
			}
		}
		responses, closed := ch.TakeResponses(nil)
		if closed != nil {
			t.Fatal(closed)
		}
		return responses
	}
	if got, want := receive(), []Response{{Number: 7}, {Number: 8, Kind: Nack, Multiple: true}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	ch.Close()
	if want := appendMethod(nil, 9, channelClose, 0, 200, 0, 0, 0, 0, 0); !bytes.Equal(c.pending, want) {
		t.Errorf("sent % x, want % x", c.pending, want)
	}
	if got := receive(); len(got) != 0 {
		t.Errorf("got %v after Close", got)
	}
	if c.channels[9] == nil {
		t.Error("the number is free although the broker has not replied")
	}
	if err := ch.receive(parseFrame(appendMethod(nil, 9, channelCloseOk))); err != nil || c.channels[9] != nil {
		t.Errorf("the number is not free after the reply: %v", err)
	}

	c, ch, _ = connOn(nil)
	first := &amqp.Error{Code: 404}
	ch.end(first)
	ch.end(&amqp.Error{Code: 405})
	if err := ch.WaitOpen(); !errors.Is(err, first) {
		t.Errorf("WaitOpen: %v, want the first reason", err)
	}
	ch.Close()
	if len(c.pending) > 0 {
		t.Errorf("sent % x, but the channel was closed", c.pending)
	}
	if ch.Publish(1, "", "", &Content{properties: make([]byte, numberSize)}, 4096) {
		t.Error("a closed channel publishes")
	}
}

// The memory of the responses is reused.
func TestResponsesReuseMemory(t *testing.T) {
	t.Parallel()
	_, ch, _ := connOn(nil)
	ch.record(Response{Number: 1})
	first, _ := ch.TakeResponses(nil)
	ch.record(Response{Number: 2})
	second, _ := ch.TakeResponses(first)
	ch.record(Response{Number: 3})
	third, _ := ch.TakeResponses(second)
	if len(second) != 1 || second[0].Number != 2 || len(third) != 1 || third[0].Number != 3 || &third[0] != &first[0] {
		t.Errorf("got %v and %v", second, third)
	}
}

// amqp091 does not see the confirms, so it could consider the connection dead.
// Therefore Conn inserts heartbeats that amqp091 reads.
func TestSilenceIsFilledWithHeartbeats(t *testing.T) {
	t.Parallel()
	if string(heartbeat[:]) != "\x08\x00\x00\x00\x00\x00\x00\xce" {
		t.Errorf("a heartbeat is % x", heartbeat)
	}
	ack := appendMethod(nil, 9, basicAck, 0, 0, 0, 0, 0, 0, 0, 7, 1)
	for name, c := range map[string]struct {
		from string
		last time.Time
		want string
	}{
		"long silence":              {string(ack), time.Now().Add(-longestSilence - time.Millisecond), string(heartbeat[:])},
		"short silence":             {string(ack), time.Now().Add(time.Hour), ""},
		"an incomplete frame":       {string(ack[:5]), time.Time{}, ""},
		"amqp091 reads its own":     {string(heartbeat[:]) + string(ack), time.Time{}, string(heartbeat[:])},
		"it has just read its own":  {string(heartbeat[:]), time.Now().Add(time.Hour), string(heartbeat[:])},
		"nothing is read, but long": {"", time.Time{}, ""},
	} {
		conn, _, got := connOn(bytes.NewReader([]byte(c.from)))
		conn.lastRead = c.last
		before := time.Now()
		if _, err := io.Copy(got, io.MultiReader(conn)); err != nil {
			t.Fatal(err)
		}
		if got.String() != c.want {
			t.Errorf("%s: amqp091 reads % x, want % x", name, got.String(), c.want)
		}
		if c.want != "" && (conn.lastRead.Before(before) || conn.lastRead.After(time.Now())) {
			t.Errorf("%s: lastRead is %v", name, conn.lastRead)
		}
	}
}

// After each read, a channel gets one notification, however many frames the read
// contained.
func TestChannelIsToldOncePerRead(t *testing.T) {
	t.Parallel()
	ack := appendMethod(nil, 9, basicAck, 0, 0, 0, 0, 0, 0, 0, 7, 1)
	conn, ch, got := connOn(io.MultiReader(bytes.NewReader(slices.Concat(ack, ack)), bytes.NewReader(ack)))
	told := 0
	ch.notify = func() { told++ }
	conn.lastRead = time.Now().Add(time.Hour)
	if _, err := io.Copy(got, io.MultiReader(conn)); err != nil {
		t.Fatal(err)
	}
	if told != 3 { // and once at the end of the connection
		t.Errorf("told %d times, want 3", told)
	}
	if !conn.IsClosing() || conn.CloseReason() != nil {
		t.Errorf("closing is %t, and the reason of the broker is %v", conn.IsClosing(), conn.CloseReason())
	}
	conn, _, _ = connOn(nil)
	if conn.IsClosing() || conn.CloseReason() != nil {
		t.Error("the connection is not open")
	}
	reason := &amqp.Error{Code: 320, Server: true}
	conn.end(reason)
	conn.end(&amqp.Error{Code: 541, Server: true})
	if !conn.IsClosing() || conn.CloseReason() != reason || len(conn.channels) != 0 {
		t.Errorf("the reason is %v, want the first; %d channels", conn.CloseReason(), len(conn.channels))
	}
}

// OpenChannel also puts the channel into confirm mode.
func TestOpenChannelAsksForConfirms(t *testing.T) {
	t.Parallel()
	c, _, _ := connOn(nil)
	c.highest = 20
	told := false
	ch, err := c.OpenChannel(func() { told = true })
	if err != nil {
		t.Fatal(err)
	}
	want := appendMethod(appendMethod(nil, 20, channelOpen, 0), 20, confirmSelect, 0)
	if ch.number != 20 || c.channels[20] != ch || !bytes.Equal(c.pending, want) {
		t.Errorf("sent % x on channel %d, want % x", c.pending, ch.number, want)
	}
	ch.notify()
	if !told {
		t.Error("the caller is not told")
	}
	c.err = io.ErrClosedPipe
	if _, err := c.OpenChannel(func() {}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("OpenChannel: %v, want the failure of the socket", err)
	}
}

// If neither the client nor the broker limits the number of channels, amqp091 gets half
// of its default number.
func TestChannelsWithoutALimit(t *testing.T) {
	t.Parallel()
	c, _, _ := connOn(nil)
	c.confirmChannels = true
	offer := reader{0, 0, 1}
	c.rewriteTune(offer)
	if c.highest != 2047 || !bytes.Equal(offer, []byte{1023 >> 8, 1023 & 0xff, 1}) {
		t.Errorf("%d channels, of which amqp091 gets % x", c.highest, offer[:2])
	}
	c.highest = 0
	c.rewriteTune(reader{7})
	if c.highest != 0 {
		t.Error("a truncated offer is read")
	}
	c.rewriteTune(reader{0, 9})
	if c.highest != 9 {
		t.Errorf("%d channels, want 9", c.highest)
	}
}

// With confirm channels, amqp091's reply to the offer becomes one for all channels. No
// other frame is changed.
func TestReplyToTheOfferNamesAllChannels(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		confirmChannels bool
		frame, want     []byte
	}{
		"the reply":                {true, appendMethod(nil, 0, connectionTuneOk, 0, 5, 1), appendMethod(nil, 0, connectionTuneOk, 1, 4, 1)},
		"without confirm channels": {false, appendMethod(nil, 0, connectionTuneOk, 0, 5, 1), nil},
		"another method":           {true, appendMethod(nil, 0, connectionClose, 0, 5, 1), nil},
		"another channel":          {true, appendMethod(nil, 3, connectionTuneOk, 0, 5, 1), nil},
		"a truncated reply":        {true, appendMethod(nil, 0, connectionTuneOk, 5), nil},
		"another type":             {true, heartbeat[:], nil},
	} {
		c, _, _ := connOn(nil)
		c.confirmChannels, c.highest = x.confirmChannels, 0x104
		want := x.want
		if want == nil {
			want = bytes.Clone(x.frame)
		}
		got := bytes.Clone(x.frame)
		if c.rewriteTuneOk(parseFrame(got)); !bytes.Equal(got, want) {
			t.Errorf("%s: got % x, want % x", name, got, want)
		}
	}
}

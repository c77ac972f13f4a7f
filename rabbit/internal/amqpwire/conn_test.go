package amqpwire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/iotest"

	amqp "github.com/rabbitmq/amqp091-go"
)

// incoming is a connection whose Reader contains the bytes that the broker sends.
type incoming struct {
	net.Conn
	io.Reader
}

func (c incoming) Read(b []byte) (int, error) { return c.Reader.Read(b) }

func connOn(r io.Reader) (*Conn, *Channel, *bytes.Buffer) {
	c := newConn(&socket{Conn: incoming{Reader: r}, wake: make(chan struct{}, 1)})
	ch := &Channel{conn: c, number: 9, notify: func() {}, ready: make(chan struct{})}
	c.channels[9] = ch
	return c, ch, new(bytes.Buffer)
}

func returnedFrames(number uint64, body int) []byte {
	c := Content{Body: make([]byte, body)}
	p := amqp.Publishing{ContentType: "a", ContentEncoding: "b", Headers: amqp.Table{"z": int32(1)}}
	if err := c.Encode(&p, func(b []byte) ([]byte, error) { return AppendHeaders(b, p.Headers) }); err != nil {
		panic(err)
	}
	b := appendMethod(nil, 9, basicReturn, append([]byte{0x01, 0x38}, "\x08NO_ROUTE\x00\x01q"...)...)
	publish := appendPublish(nil, 9, number, "", "q", &c, 4096)
	return append(b, publish[frameLength(publish):]...) // all frames except the method
}

// Each frame reaches its receiver, no matter into which pieces the network splits it.
func TestConnDispatchesFrames(t *testing.T) {
	theirs := [][]byte{
		appendMethod(nil, 0, classConnection<<16|10, 1, 2, 3),
		heartbeat[:],
		appendMethod(nil, 1, classBasic<<16|60, bytes.Repeat([]byte("x"), 100_000)...),
	}
	all := slices.Concat(
		theirs[0],
		appendMethod(nil, 9, channelOpenOk, 0, 0, 0, 0),
		appendMethod(nil, 9, confirmSelectOk),
		theirs[1],
		returnedFrames(36*36+1, 9000),
		appendMethod(nil, 9, basicAck, 0, 0, 0, 0, 0, 0, 0, 7, 1),
		theirs[2],
		returnedFrames(8, 0),
		appendMethod(nil, 9, basicNack, 0, 0, 0, 0, 0, 0, 0, 8, 0),
		appendMethod(nil, 9, channelClose, append([]byte{0x01, 0x94}, "\x09NOT_FOUND\x00\x3c\x00\x28"...)...),
	)
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader,
	} {
		t.Run(name, func(t *testing.T) {
			c, ch, got := connOn(pieces(bytes.NewReader(all)))
			if _, err := io.Copy(got, io.MultiReader(c)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), slices.Concat(theirs...)) {
				t.Errorf("amqp091 got %d bytes, want exactly its own frames", got.Len())
			}
			responses, closed := ch.TakeResponses(nil)
			want := []Response{
				{Number: 36*36 + 1, Kind: Return, Code: 312, Text: "NO_ROUTE"},
				{Number: 7, Multiple: true},
				{Number: 8, Kind: Return, Code: 312, Text: "NO_ROUTE"},
				{Number: 8, Kind: Nack},
			}
			if !slices.Equal(responses, want) {
				t.Errorf("got %v, want %v", responses, want)
			}
			if closed == nil || closed.Code != amqp.NotFound || !closed.Recover || closed.Reason != "NOT_FOUND" {
				t.Errorf("closed: %v", closed)
			}
			if err := ch.WaitOpen(); !errors.Is(err, closed) {
				t.Errorf("WaitOpen: %v, want %v", err, closed)
			}
			if want := appendMethod(nil, 9, channelCloseOk); !bytes.Equal(c.pending, want) {
				t.Errorf("replied % x, want % x", c.pending, want)
			}
			if c.channels[9] != nil {
				t.Error("the number is still in use")
			}
		})
	}
}

func TestConnClosesChannelsWithTheConnection(t *testing.T) {
	c, ch, got := connOn(bytes.NewReader(
		appendMethod(nil, 0, connectionClose, append([]byte{0x01, 0x40}, "\x06forced\x00\x00\x00\x00"...)...)))
	if _, err := io.Copy(got, io.MultiReader(c)); err != nil {
		t.Fatal(err)
	}
	_, closed := ch.TakeResponses(nil)
	if closed == nil || closed.Code != amqp.ConnectionForced || !closed.Server || closed.Reason != "forced" {
		t.Errorf("closed: %v, want the broker's reason", closed)
	}
	if _, err := c.open(2047, func() {}); !errors.Is(err, closed) {
		t.Errorf("open: %v, want %v", err, closed)
	}
	if got.Len() == 0 {
		t.Error("amqp091 did not get the close")
	}
}

func TestConnRejectsUnexpectedFrames(t *testing.T) {
	badEnd := appendMethod(nil, 9, confirmSelectOk)
	badEnd[len(badEnd)-1]++
	for name, b := range map[string][]byte{
		"unknown method":    appendMethod(nil, 9, classBasic<<16|999),
		"unknown type":      endFrame(beginFrame(nil, 77, 9), 0),
		"short method":      endFrame(append(beginFrame(nil, frameMethod, 9), 1), 0),
		"header of nothing": endFrame(beginFrame(nil, frameHeader, 9), 0),
		"body of nothing":   endFrame(append(beginFrame(nil, frameBody, 9), 1), 0),
		"end":               badEnd,
	} {
		t.Run(name, func(t *testing.T) {
			c, ch, _ := connOn(bytes.NewReader(b))
			if _, err := c.Read(make([]byte, 10)); !errors.Is(err, errBadFrame) {
				t.Errorf("got %v, want %v", err, errBadFrame)
			}
			if _, closed := ch.TakeResponses(nil); closed == nil || closed.Server {
				t.Errorf("closed: %v", closed)
			}
		})
	}
}

// The frames of confirm channels are written only between complete frames of amqp091.
func TestConnWritesWholeFrames(t *testing.T) {
	c, _, _ := connOn(nil)
	theirs := append([]byte(protocolHeader), appendMethod(nil, 0, 1<<16|1, make([]byte, 100)...)...)
	for i := range theirs {
		if n, err := c.Write(theirs[i : i+1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		want := 0
		if i >= len(protocolHeader)-1 {
			want = len(protocolHeader)
		}
		if i == len(theirs)-1 {
			want = len(theirs)
		}
		if len(c.pending) != want {
			t.Fatalf("after %d bytes the buffer has %d, want %d", i+1, len(c.pending), want)
		}
	}
	if !bytes.Equal(c.pending, theirs) {
		t.Error("the frames were changed")
	}
	c.err = io.ErrClosedPipe
	if _, err := c.Write(theirs); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write: %v", err)
	}
}

func TestConnChannelNumbers(t *testing.T) {
	c, _, _ := connOn(nil)
	clear(c.channels)
	seen := make(map[uint16]bool)
	for range 4 {
		ch, err := c.open(7, func() {})
		if err != nil {
			t.Fatal(err)
		}
		seen[ch.number] = true
	}
	for number := range seen {
		if number < 4 || number > 7 {
			t.Errorf("number %d belongs to amqp091 or exceeds the limit", number)
		}
	}
	if _, err := c.open(7, func() {}); err == nil || len(seen) != 4 {
		t.Errorf("a fifth channel beside %v: %v", seen, err)
	}
	c.release(7)
	if ch, err := c.open(7, func() {}); err != nil || ch.number != 7 {
		t.Errorf("want the free number 7: %v, %v", ch, err)
	}
	c.release(6)
	c.release(7)
	if ch, err := c.open(7, func() {}); err != nil || ch.number != 6 {
		t.Errorf("want number 6, which was free for longest: %v, %v", ch, err)
	}
	if _, err := c.open(1, func() {}); err == nil {
		t.Error("number 1 must be left to amqp091")
	}
}

// Nothing is published after our reply to a channel close. Otherwise the broker would
// get a publish on a closed channel, and close the connection.
func TestNothingIsPublishedBehindTheReplyToAClose(t *testing.T) {
	closing := appendMethod(nil, 9, channelClose, 1, 0x94, 0, 0, 60, 0, 40)
	reply := appendMethod(nil, 9, channelCloseOk)
	for range 10_000 {
		c, ch, _ := connOn(nil)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ch.Publish(1, "", "", &Content{properties: make([]byte, numberSize)}, 4096) {
				}
			})
		}
		if err := ch.receive(parseFrame(closing)); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if !bytes.HasSuffix(c.pending, reply) {
			t.Fatalf("%d bytes are written behind the reply", len(c.pending)-bytes.LastIndex(c.pending, reply)-len(reply))
		}
	}
}

// amqp091 uses every channel number that it knows, so Conn must tell it only half of
// the numbers.
func TestConnSharesTheNumbers(t *testing.T) {
	for _, c := range []struct{ offered, wanted, theirs, highest byte }{
		{offered: 0, wanted: 20, theirs: 10, highest: 20},
		{offered: 20, wanted: 0, theirs: 10, highest: 20},
		{offered: 20, wanted: 7, theirs: 3, highest: 7},
		{offered: 7, wanted: 20, theirs: 3, highest: 7},
		{offered: 1, wanted: 0, theirs: 1, highest: 1},
	} {
		for _, confirmChannels := range []bool{true, false} {
			if !confirmChannels {
				c.theirs, c.highest = c.offered, c.offered
			}
			conn, _, got := connOn(bytes.NewReader(appendMethod(nil, 0, connectionTune, 0, c.offered, 1, 2, 3, 4, 5, 6)))
			conn.confirmChannels, conn.channelMax = confirmChannels, uint16(c.wanted)
			if _, err := io.Copy(got, io.MultiReader(conn)); err != nil {
				t.Fatal(err)
			}
			if want := appendMethod(nil, 0, connectionTune, 0, c.theirs, 1, 2, 3, 4, 5, 6); !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%+v: amqp091 reads % x, want % x", c, got.Bytes(), want)
			}
			if _, err := conn.Write(appendMethod(nil, 0, connectionTuneOk, 0, c.theirs, 1, 2, 3, 4, 5, 6)); err != nil {
				t.Fatal(err)
			}
			if want := appendMethod(nil, 0, connectionTuneOk, 0, c.highest, 1, 2, 3, 4, 5, 6); !bytes.Equal(conn.pending, want) {
				t.Errorf("%+v: the broker reads % x, want % x", c, conn.pending, want)
			}
		}
	}
}

func FuzzConnRead(f *testing.F) {
	f.Add(returnedFrames(1, 10))
	f.Add(appendMethod(nil, 9, basicAck, 0, 0, 0, 0, 0, 0, 0, 7, 1))
	f.Add(appendMethod(nil, 9, channelClose, 1, 0x94, 3, 'a', 'b', 'c'))
	f.Add(append([]byte(protocolHeader), heartbeat[:]...))
	header := append(beginFrame(nil, frameHeader, 1), make([]byte, contentHeaderOverhead)...)
	f.Add(endFrame(append(header, "\x20\x00\x00\x00\x00\x05\x01au\xff\xfe"...), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, ch, got := connOn(bytes.NewReader(b))
		_, err := io.Copy(got, io.MultiReader(c))
		if _, closed := ch.TakeResponses(nil); closed == nil {
			t.Error("the connection has ended but the channel is open")
		}
		if err == nil && got.Len() > 2*len(b)+len(heartbeat) { // widening makes some numbers longer
			t.Errorf("%d bytes were made from %d", got.Len(), len(b))
		}
	})
}

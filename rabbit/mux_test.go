package rabbit

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

// incoming is a connection on which the broker says b.
type incoming struct {
	net.Conn
	io.Reader
}

func (c incoming) Read(b []byte) (int, error) { return c.Reader.Read(b) }

func muxOn(r io.Reader) (*mux, *channel, *bytes.Buffer) {
	m := newMux(&socket{Conn: incoming{Reader: r}, wake: make(chan struct{}, 1)})
	c := &channel{mux: m, number: 9, changed: func() {}, ready: make(chan struct{})}
	m.channels[9] = c
	return m, c, new(bytes.Buffer)
}

func returnedFrames(number uint64, body int) []byte {
	c := content{body: make([]byte, body)}
	p := amqp.Publishing{ContentType: "a", ContentEncoding: "b", Headers: amqp.Table{"z": int32(1)}}
	if err := c.encode(&p, func(b []byte) ([]byte, error) { return appendFields(b, p.Headers, "") }); err != nil {
		panic(err)
	}
	b := appendMethod(nil, 9, basicReturn, append([]byte{0x01, 0x38}, "\x08NO_ROUTE\x00\x01q"...)...)
	publish := appendPublish(nil, 9, number, "", "q", &c, 4096)
	return append(b, publish[frameLength(publish):]...) // without its method
}

// Whatever the pieces are in which bytes come in, each frame goes to whom it is for.
func TestMuxSplitsWhatComesIn(t *testing.T) {
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
			m, c, got := muxOn(pieces(bytes.NewReader(all)))
			if _, err := io.Copy(got, io.MultiReader(m)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), slices.Concat(theirs...)) {
				t.Errorf("amqp091 got %d bytes, want its own frames", got.Len())
			}
			answers, closed := c.take(nil)
			want := []answer{
				{number: 36*36 + 1, kind: answerReturn, code: 312, text: "NO_ROUTE"},
				{number: 7, multiple: true},
				{number: 8, kind: answerReturn, code: 312, text: "NO_ROUTE"},
				{number: 8, kind: answerNack},
			}
			if !slices.Equal(answers, want) {
				t.Errorf("got %v, want %v", answers, want)
			}
			if closed == nil || closed.Code != amqp.NotFound || !closed.Recover || closed.Reason != "NOT_FOUND" {
				t.Errorf("closed: %v", closed)
			}
			if err := c.await(); !errors.Is(err, closed) {
				t.Errorf("await: %v, want %v", err, closed)
			}
			if want := appendMethod(nil, 9, channelCloseOk); !bytes.Equal(m.pending, want) {
				t.Errorf("answered % x, want % x", m.pending, want)
			}
			if m.channels[9] != nil {
				t.Error("the number is still taken")
			}
		})
	}
}

func TestMuxClosesChannelsWithTheConnection(t *testing.T) {
	m, c, got := muxOn(bytes.NewReader(
		appendMethod(nil, 0, connectionClose, append([]byte{0x01, 0x40}, "\x06forced\x00\x00\x00\x00"...)...)))
	if _, err := io.Copy(got, io.MultiReader(m)); err != nil {
		t.Fatal(err)
	}
	_, closed := c.take(nil)
	if closed == nil || closed.Code != amqp.ConnectionForced || !closed.Server || closed.Reason != "forced" {
		t.Errorf("closed: %v, want the broker's reason", closed)
	}
	if _, err := m.open(2047, func() {}); !errors.Is(err, closed) {
		t.Errorf("open: %v, want %v", err, closed)
	}
	if got.Len() == 0 {
		t.Error("amqp091 did not hear of it")
	}
}

func TestMuxRefusesWhatIsNotUnderstood(t *testing.T) {
	badEnd := appendMethod(nil, 9, confirmSelectOk)
	badEnd[len(badEnd)-1]++
	for name, b := range map[string][]byte{
		"unknown method":    appendMethod(nil, 9, classBasic<<16|999),
		"unknown type":      endFrame(appendFrame(nil, 77, 9), 0),
		"short method":      endFrame(append(appendFrame(nil, frameMethod, 9), 1), 0),
		"header of nothing": endFrame(appendFrame(nil, frameHeader, 9), 0),
		"body of nothing":   endFrame(append(appendFrame(nil, frameBody, 9), 1), 0),
		"end":               badEnd,
	} {
		t.Run(name, func(t *testing.T) {
			m, c, _ := muxOn(bytes.NewReader(b))
			if _, err := m.Read(make([]byte, 10)); !errors.Is(err, errBadFrame) {
				t.Errorf("got %v, want %v", err, errBadFrame)
			}
			if _, closed := c.take(nil); closed == nil || closed.Server {
				t.Errorf("closed: %v", closed)
			}
		})
	}
}

// Frames of ours go between whole frames of amqp091's.
func TestMuxWritesWholeFrames(t *testing.T) {
	m, _, _ := muxOn(nil)
	theirs := append([]byte(protocolHeader), appendMethod(nil, 0, 1<<16|1, make([]byte, 100)...)...)
	for i := range theirs {
		if n, err := m.Write(theirs[i : i+1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		want := 0
		if i >= len(protocolHeader)-1 {
			want = len(protocolHeader)
		}
		if i == len(theirs)-1 {
			want = len(theirs)
		}
		if len(m.pending) != want {
			t.Fatalf("after %d bytes %d are to be written, want %d", i+1, len(m.pending), want)
		}
	}
	if !bytes.Equal(m.pending, theirs) {
		t.Error("they were changed")
	}
	m.err = io.ErrClosedPipe
	if _, err := m.Write(theirs); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write: %v", err)
	}
}

func TestMuxChannelNumbers(t *testing.T) {
	m, _, _ := muxOn(nil)
	clear(m.channels)
	seen := make(map[uint16]bool)
	for range 4 {
		c, err := m.open(7, func() {})
		if err != nil {
			t.Fatal(err)
		}
		seen[c.number] = true
	}
	for number := range seen {
		if number < 4 || number > 7 {
			t.Errorf("number %d is amqp091's, or over the limit", number)
		}
	}
	if _, err := m.open(7, func() {}); err == nil || len(seen) != 4 {
		t.Errorf("a fifth of %v: %v", seen, err)
	}
	m.release(7)
	if c, err := m.open(7, func() {}); err != nil || c.number != 7 {
		t.Errorf("the one that is free: %v, %v", c, err)
	}
	m.release(6)
	m.release(7)
	if c, err := m.open(7, func() {}); err != nil || c.number != 6 {
		t.Errorf("the one that was free longest: %v, %v", c, err)
	}
	if _, err := m.open(1, func() {}); err == nil {
		t.Error("number 1 has to be amqp091's")
	}
}

// What comes behind the answer to a close is on a channel that is not open,
// over which the broker closes the connection.
func TestNothingIsPublishedBehindTheAnswerToAClose(t *testing.T) {
	closing := appendMethod(nil, 9, channelClose, 1, 0x94, 0, 0, 60, 0, 40)
	answer := appendMethod(nil, 9, channelCloseOk)
	for range 10_000 {
		m, c, _ := muxOn(nil)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for c.publish(1, new(flight), &content{properties: make([]byte, tokenSize)}, 4096) {
				}
			})
		}
		if err := c.receive(frameOf(closing)); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if !bytes.HasSuffix(m.pending, answer) {
			t.Fatalf("%d bytes are written behind it", len(m.pending)-bytes.LastIndex(m.pending, answer)-len(answer))
		}
	}
}

// amqp091 goes through all numbers that it knows of.
func TestMuxSharesTheNumbers(t *testing.T) {
	for _, c := range []struct{ offered, wanted, theirs, most byte }{
		{offered: 0, wanted: 20, theirs: 10, most: 20},
		{offered: 20, wanted: 0, theirs: 10, most: 20},
		{offered: 20, wanted: 7, theirs: 3, most: 7},
		{offered: 7, wanted: 20, theirs: 3, most: 7},
		{offered: 1, wanted: 0, theirs: 1, most: 1},
	} {
		for _, publishes := range []bool{true, false} {
			if !publishes {
				c.theirs, c.most = c.offered, c.offered
			}
			m, _, got := muxOn(bytes.NewReader(appendMethod(nil, 0, connectionTune, 0, c.offered, 1, 2, 3, 4, 5, 6)))
			m.publishes, m.wanted = publishes, uint16(c.wanted)
			if _, err := io.Copy(got, io.MultiReader(m)); err != nil {
				t.Fatal(err)
			}
			if want := appendMethod(nil, 0, connectionTune, 0, c.theirs, 1, 2, 3, 4, 5, 6); !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%+v: amqp091 reads % x, want % x", c, got.Bytes(), want)
			}
			if _, err := m.Write(appendMethod(nil, 0, connectionTuneOk, 0, c.theirs, 1, 2, 3, 4, 5, 6)); err != nil {
				t.Fatal(err)
			}
			if want := appendMethod(nil, 0, connectionTuneOk, 0, c.most, 1, 2, 3, 4, 5, 6); !bytes.Equal(m.pending, want) {
				t.Errorf("%+v: the broker reads % x, want % x", c, m.pending, want)
			}
		}
	}
}

func FuzzMuxRead(f *testing.F) {
	f.Add(returnedFrames(1, 10))
	f.Add(appendMethod(nil, 9, basicAck, 0, 0, 0, 0, 0, 0, 0, 7, 1))
	f.Add(appendMethod(nil, 9, channelClose, 1, 0x94, 3, 'a', 'b', 'c'))
	f.Add(append([]byte(protocolHeader), heartbeat[:]...))
	header := append(appendFrame(nil, frameHeader, 1), make([]byte, contentHeaderOverhead)...)
	f.Add(endFrame(append(header, "\x20\x00\x00\x00\x00\x05\x01au\xff\xfe"...), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, c, got := muxOn(bytes.NewReader(b))
		_, err := io.Copy(got, io.MultiReader(m))
		if _, closed := c.take(nil); closed == nil {
			t.Error("the connection has ended and the channel is open")
		}
		if err == nil && got.Len() > 2*len(b)+len(heartbeat) { // some numbers become wider
			t.Errorf("%d bytes came of %d", got.Len(), len(b))
		}
	})
}

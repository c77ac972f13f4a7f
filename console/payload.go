package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

type content struct {
	Problem  string // why the message is not shown, or ""
	Changed  bool   // whether Config.Payload has changed the message
	Metadata []pair
	Less     bool // whether Metadata is only a part of the metadata
	Size     int
	Text     string
	View     string
	Views    []viewLink `api:"-"`
	Cut      bool       // whether Text contains only the beginning of the payload
	Download string
}

type viewLink struct {
	Name, URL string
	Current   bool
}

// errHidden means that Config.Payload refuses to show a message.
var errHidden = errors.New("the message is not shown")

// errDamaged: a message that cannot be decoded cannot be downloaded.
var errDamaged error = inputError{errors.New("the stored message is damaged")}

func messageOf(id string, payload []byte, metadata message.Metadata) *message.Message {
	m := message.NewMessage(id, payload)
	maps.Copy(m.Metadata, metadata)
	return m
}

// visibleMessage reports whether Config.Payload has changed the message. If it refuses to show it,
// the error wraps errHidden.
func (c *Console) visibleMessage(r *http.Request, topic string, msg *message.Message) (shown *message.Message, changed bool, err error) {
	if _, err := c.authorize(r, ReadMessage); err != nil {
		return nil, true, err
	}
	if c.config.Payload == nil {
		return msg, false, nil
	}
	defer func() {
		if p := recover(); p != nil {
			c.config.Logger.Error("Config.Payload panicked", fmt.Errorf("panic: %v", p), nil)
			shown, changed, err = nil, true, fmt.Errorf("%w: Config.Payload panicked", errHidden)
		}
	}()
	shown, err = c.config.Payload(r, topic, messageOf(msg.UUID, slices.Clone(msg.Payload), msg.Metadata))
	if err == nil && shown == nil {
		err = errors.New("Config.Payload returned no message")
	}
	if err != nil {
		return nil, true, fmt.Errorf("%w: %w", errHidden, err)
	}
	changed = !bytes.Equal(shown.Payload, msg.Payload) || !maps.Equal(shown.Metadata, msg.Metadata)
	return shown, changed, nil
}

func (c *Console) content(r *http.Request, area string, id int64, topic string, msg *message.Message) content {
	shown, changed, err := c.visibleMessage(r, topic, msg)
	if err != nil {
		return content{Problem: sentence(err)}
	}
	all := content{Changed: changed, Size: len(shown.Payload), Download: link("payload", "of", area, "id", id)}
	all.Metadata, all.Less = shownMetadata(shown.Metadata)
	all.View = r.URL.Query().Get("view")
	if views := []string{viewJSON, viewText, viewHex}; !slices.Contains(views, all.View) {
		all.View = naturalView(shown.Payload)
	}
	all.Text, all.Cut = render(shown.Payload, all.View)
	for _, name := range []string{viewJSON, viewText, viewHex} {
		query := r.URL.Query()
		query.Set("view", name)
		page, _, _ := strings.Cut(self(r), "?")
		all.Views = append(all.Views, viewLink{name, page + "?" + query.Encode(), name == all.View})
	}
	return all
}

func upper(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// The headers make the browser save the payload instead of showing it.
func (c *Console) getPayload(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(r)
	if err != nil {
		return err
	}
	topic, msg, err := c.messageFor(r, id)
	if err != nil {
		return err
	}
	shown, _, err := c.visibleMessage(r, topic, msg)
	switch {
	case errors.Is(err, errHidden):
		return refusedError{ReadMessage}
	case err != nil:
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="message-%d.bin"`, id))
	w.Header().Set("Content-Length", strconv.Itoa(len(shown.Payload)))
	_, _ = w.Write(shown.Payload)
	return nil
}

func (c *Console) messageFor(r *http.Request, id int64) (topic string, msg *message.Message, err error) {
	switch area := r.URL.Query().Get("of"); area {
	case "outbox":
		m, err := c.outbox.Get(r.Context(), id)
		return m.Topic, messageOf(m.MessageID, m.Payload, m.Metadata), err
	case "dead":
		l, err := c.letters.Get(r.Context(), id)
		return l.Topic, messageOf(l.MessageID, l.Payload, l.Metadata), err
	case "sent":
		m, err := c.sent.Get(r.Context(), id)
		return m.Topic, messageOf(m.MessageID, m.Payload, m.Metadata), err
	case "parked":
		m, err := c.parked.Get(r.Context(), id)
		if err == nil && m.Message == nil {
			return "", nil, errDamaged
		}
		return m.Topic, m.Message, err
	case "quarantine":
		e, err := c.quarantine.Get(r.Context(), id)
		if err == nil && e.Message == nil {
			return "", nil, errDamaged
		}
		return e.Topic, e.Message, err
	default:
		return "", nil, inputError{fmt.Errorf("of is %q, but must be one of outbox, dead, sent, parked, quarantine", area)}
	}
}

// Views of a payload.
const (
	viewJSON = "json"
	viewText = "text"
	viewHex  = "hex"
)

// Senders decide how large a message is: no view may need much more memory than the message.
const (
	// A page shows at most shownBytes of a payload and of all metadata, a download everything.
	shownBytes = 64 << 10

	// shownPairs is the maximum number of metadata that a page shows.
	shownPairs = 500

	// parsedBytes is the size of the largest payload that is parsed as JSON.
	parsedBytes = 4 << 20
)

func isJSON(payload []byte) bool { return len(payload) <= parsedBytes && json.Valid(payload) }

func naturalView(payload []byte) string {
	switch {
	case isJSON(payload):
		return viewJSON
	case utf8.Valid(payload):
		return viewText
	}
	return viewHex
}

func render(payload []byte, view string) (text string, cut bool) {
	switch view {
	case viewJSON:
		if isJSON(payload) { // invalid JSON is shown as text
			payload = indented(payload)
		}
	case viewHex:
		cut = len(payload) > shownBytes/4
		return hex.Dump(payload[:min(len(payload), shownBytes/4)]), cut
	}
	shown := beginning(payload, shownBytes)
	return visible(string(shown)), len(shown) < len(payload)
}

// No part of a character is left at the end.
func beginning(text []byte, limit int) []byte {
	if len(text) <= limit {
		return text
	}
	for end := limit; end >= 0 && end > limit-utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:limit] // not UTF-8
}

// indented ends soon after shownBytes. json.Indent would indent the whole payload first, and make
// 800 MB of 20 kB of brackets.
func indented(payload []byte) []byte {
	in := indenter{out: make([]byte, 0, min(2*len(payload), 2*shownBytes))}
	for i := 0; i < len(payload) && len(in.out) <= shownBytes; i++ {
		in.add(payload[i])
	}
	return in.out
}

// indenter indents JSON, byte by byte.
type indenter struct {
	out             []byte
	depth           int
	opened          bool // the last token has opened an object or an array
	quoted, escaped bool // in a string; after a backslash in a string
}

func (in *indenter) add(c byte) {
	if in.quoted {
		in.out = append(in.out, c)
		in.quoted = c != '"' || in.escaped
		in.escaped = c == '\\' && !in.escaped
		return
	}
	closes := c == '}' || c == ']'
	switch {
	case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		return
	case in.opened && !closes:
		in.depth++
		in.newLine()
	case closes && !in.opened:
		in.depth--
		in.newLine()
	}
	in.out = append(in.out, c)
	in.opened, in.quoted = c == '{' || c == '[', c == '"'
	switch c {
	case ',':
		in.newLine()
	case ':':
		in.out = append(in.out, ' ')
	}
}

func (in *indenter) newLine() {
	in.out = append(in.out, '\n')
	for range in.depth {
		in.out = append(in.out, "  "...)
	}
}

func shownMetadata(metadata map[string]string) (pairs []pair, cut bool) {
	left := shownBytes
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if len(pairs) == shownPairs || left <= 0 {
			return pairs, true
		}
		value := metadata[name]
		p := pair{string(beginning([]byte(name), left)), ""}
		left -= len(p.Name)
		p.Value = string(beginning([]byte(value), max(0, left)))
		left -= len(p.Value)
		cut = cut || len(p.Name) < len(name) || len(p.Value) < len(value)
		pairs = append(pairs, p)
	}
	return pairs, cut
}

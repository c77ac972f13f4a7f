package console

import (
	"bytes"
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

// shownBytes is the maximum number of bytes of a payload that a page shows. A download
// contains the whole payload.
const shownBytes = 64 << 10

// Views of a payload.
const (
	viewJSON = "json"
	viewText = "text"
	viewHex  = "hex"
)

// content contains the parts of a message that a person may see.
type content struct {
	Problem  string // why the message is not shown, or ""
	Changed  bool   // whether Config.Payload has changed the message
	Metadata []pair
	Size     int
	Text     string
	View     string
	Views    []viewLink
	Cut      bool // whether Text contains only the beginning of the payload
	Download string
}

// viewLink is a link to another view of the payload.
type viewLink struct {
	Name, URL string
	Current   bool
}

// errHidden means that Config.Payload refuses to show a message.
var errHidden = errors.New("the message is not shown")

// errDamaged means that a stored message cannot be decoded, so it cannot be downloaded.
var errDamaged error = inputError{errors.New("the stored message is damaged")}

// messageOf returns a message that can be passed to Config.Payload.
func messageOf(id string, payload []byte, metadata message.Metadata) *message.Message {
	m := message.NewMessage(id, payload)
	maps.Copy(m.Metadata, metadata)
	return m
}

// visibleMessage returns the message as the person may see it. It reports whether
// Config.Payload has changed the message. If Config.Payload refuses to show the
// message, the error wraps errHidden.
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
	original := messageOf(msg.UUID, slices.Clone(msg.Payload), msg.Metadata)
	shown, err = c.config.Payload(r, topic, messageOf(msg.UUID, slices.Clone(msg.Payload), msg.Metadata))
	if err == nil && shown == nil {
		err = errors.New("Config.Payload returned no message")
	}
	if err != nil {
		return nil, true, fmt.Errorf("%w: %w", errHidden, err)
	}
	changed = !bytes.Equal(shown.Payload, original.Payload) || !maps.Equal(shown.Metadata, original.Metadata)
	return shown, changed, nil
}

// content returns a message in the form that a page shows. The parameters area and id
// identify the message in the URL for its download.
func (c *Console) content(r *http.Request, area string, id int64, topic string, msg *message.Message) content {
	shown, changed, err := c.visibleMessage(r, topic, msg)
	if err != nil {
		return content{Problem: sentence(err)}
	}
	all := content{Changed: changed, Size: len(shown.Payload), Download: link("payload", "of", area, "id", id)}
	for _, name := range slices.Sorted(maps.Keys(shown.Metadata)) {
		all.Metadata = append(all.Metadata, pair{name, shown.Metadata[name]})
	}
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

func naturalView(payload []byte) string {
	switch {
	case json.Valid(payload):
		return viewJSON
	case utf8.Valid(payload):
		return viewText
	}
	return viewHex
}

// render returns the beginning of a payload as text. It reports whether the text was
// cut.
func render(payload []byte, view string) (text string, cut bool) {
	switch view {
	case viewJSON:
		var pretty bytes.Buffer
		if json.Indent(&pretty, payload, "", "  ") == nil { // invalid JSON is shown as text
			payload = pretty.Bytes()
		}
	case viewHex:
		cut = len(payload) > shownBytes/4
		return hexDump(payload[:min(len(payload), shownBytes/4)]), cut
	}
	cut = len(payload) > shownBytes
	payload = payload[:min(len(payload), shownBytes)]
	for cut && len(payload) > 0 && !utf8.FullRune(payload[max(0, len(payload)-utf8.UTFMax):]) {
		payload = payload[:len(payload)-1]
	}
	return visible(string(payload)), cut
}

// upper returns text with its first letter in upper case.
func upper(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// getPayload sends a payload byte for byte. The headers of the response make the
// browser save the payload instead of showing it.
func (c *Console) getPayload(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
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

// messageFor returns the message to download, and its topic.
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

package console

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

const maxMetadata = 64 << 10

// editPage also shows the differences from the stored message after the first submit.
type editPage struct {
	Entry    quarantine.Entry
	Problem  string // why the form cannot be stored
	Hex      bool   // whether the payload is edited as hexadecimal digits
	Payload  string
	Metadata string
	Why      string
	Keep     bool // whether the edited message stays in quarantine

	// Review: the form is valid, and the differences wait for the operator's confirmation.
	Review       bool
	Exact        string // new payload in base64, because browsers change the line ends of texts
	PayloadDiff  []diffLine
	MetadataDiff []diffLine
	OldSize      int
	NewSize      int
	NotJSON      bool // whether the payload was valid JSON before the edit and is not any more
	Unchanged    bool
}

// editable returns an error if the entry cannot be edited, or not by this person.
func (c *Console) editable(r *http.Request, id int64) (e quarantine.Entry, actor string, err error) {
	if actor, err = c.authorize(r, EditQuarantined); err != nil {
		return e, "", err
	}
	if e, err = c.quarantine.Get(r.Context(), id); err != nil {
		return e, "", err
	}
	switch {
	case e.State != quarantined:
		return e, "", inputError{fmt.Errorf("entry %d is %s, and only quarantined entries can be edited", id, e.State)}
	case e.Message == nil:
		return e, "", inputError{fmt.Errorf("entry %d is damaged and cannot be edited: discard it", id)}
	case sizeOf(e.Message.Metadata) > maxMetadata:
		return e, "", inputError{fmt.Errorf("the metadata has %s, more than %s: use the command once quarantine edit %d",
			size(sizeOf(e.Message.Metadata)), size(maxMetadata), id)}
	case len(e.Message.Payload) > c.config.MaxEdit:
		return e, "", inputError{fmt.Errorf("the payload has %s, more than %s: use the command once quarantine edit %d",
			size(len(e.Message.Payload)), size(c.config.MaxEdit), id)}
	}
	_, changed, err := c.visibleMessage(r, e.Topic, e.Message)
	if err == nil && changed { // an edit would lose the parts that Config.Payload hides
		err = inputError{errors.New("parts of the message are hidden from you, so you cannot edit it")}
	}
	if errors.Is(err, errHidden) {
		err = refusedError{EditQuarantined}
	}
	return e, actor, err
}

func sizeOf(metadata message.Metadata) (n int) {
	for name, value := range metadata {
		n += len(name) + len(value)
	}
	return n
}

func (c *Console) getEdit(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(r)
	if err != nil {
		return err
	}
	e, _, err := c.editable(r, id)
	if err != nil {
		return err
	}
	body := editPage{Entry: e, Hex: !textual(e.Message.Payload) || r.URL.Query().Get("as") == viewHex}
	body.Payload = asText(e.Message.Payload, body.Hex)
	if body.Metadata, err = metadataText(e.Message.Metadata); err != nil {
		return inputError{err}
	}
	return c.showEdit(w, r, body)
}

func (c *Console) showEdit(w http.ResponseWriter, r *http.Request, body editPage) error {
	return c.show(w, r, page{Title: fmt.Sprintf("Edit entry %d", body.Entry.ID), Template: "edit", Section: "quarantine", Body: body})
}

// textual reports whether a text area in HTML keeps the payload byte for byte, apart from its line
// ends, which postEdit restores.
func textual(payload []byte) bool {
	return utf8.Valid(payload) && !bytes.ContainsFunc(payload, func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.IsControl(r) || r == utf8.RuneError
	})
}

func asText(payload []byte, asHex bool) string {
	if !asHex {
		return string(payload)
	}
	text := make([]byte, 0, 3*len(payload))
	for i := range payload {
		if i > 0 {
			text = append(text, " \n"[btoi(i%16 == 0)])
		}
		text = hex.AppendEncode(text, payload[i:i+1])
	}
	return string(text)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func metadataText(metadata message.Metadata) (string, error) {
	for name, text := range metadata {
		if !utf8.ValidString(name) || !utf8.ValidString(text) {
			return "", fmt.Errorf("the metadata %q is not valid UTF-8: use the command once quarantine edit", name)
		}
	}
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if metadata == nil {
		metadata = message.Metadata{}
	}
	err := encoder.Encode(metadata)
	return strings.TrimSuffix(b.String(), "\n"), err
}

type edited struct {
	payload  []byte
	metadata message.Metadata
	problem  error
}

func (c *Console) newEdited(form url.Values, body *editPage) (e edited) {
	// A browser sends every line end as CRLF. A payload with CR is edited in hexadecimal.
	unix := func(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }
	body.Hex, body.Why = form.Get("as") == viewHex, form.Get("why")
	body.Payload, body.Metadata = unix(form.Get("payload")), unix(form.Get("metadata"))
	if exact := form.Get("exact"); form.Has("exact") {
		payload, err := base64.StdEncoding.DecodeString(exact)
		if err != nil {
			e.problem = errors.New("the form is damaged: edit the entry again")
			return e
		}
		e.payload, body.Payload = payload, asText(payload, body.Hex)
	} else if body.Hex {
		payload, err := hex.DecodeString(strings.Join(strings.Fields(body.Payload), ""))
		if err != nil {
			e.problem = fmt.Errorf("the payload is not hexadecimal: %w", err)
		}
		e.payload = payload
	} else {
		e.payload = []byte(body.Payload)
	}
	if len(e.payload) > c.config.MaxEdit {
		e.problem = errors.Join(e.problem, fmt.Errorf("the payload has %s, more than %s", size(len(e.payload)), size(c.config.MaxEdit)))
	}
	metadata, err := parseMetadata(body.Metadata)
	e.metadata, e.problem = metadata, errors.Join(e.problem, err)
	return e
}

func parseMetadata(text string) (metadata message.Metadata, err error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	switch err := decoder.Decode(&metadata); {
	case err != nil:
		return nil, fmt.Errorf("the metadata is not a JSON object of strings: %w", err)
	case decoder.More():
		return nil, errors.New("the metadata has more than one JSON object")
	case sizeOf(metadata) > maxMetadata:
		return nil, fmt.Errorf("the metadata has %s, more than %s", size(sizeOf(metadata)), size(maxMetadata))
	}
	for name, value := range metadata {
		if name == "" || strings.ContainsRune(name+value, 0) {
			return nil, fmt.Errorf("the metadata %q has an empty name or a zero byte", name)
		}
	}
	return metadata, nil
}

// postEdit shows the differences, and stores the message with the operator's confirmation.
func (c *Console) postEdit(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	id, err := strconv.ParseInt(r.PostForm.Get("id"), 10, 64)
	if err != nil {
		return inputError{errors.New("id is not a number")}
	}
	old, actor, err := c.editable(r, id)
	if err != nil {
		return err
	}
	body := editPage{Entry: old}
	var confirmed, back bool
	for name, to := range map[string]*bool{"keep": &body.Keep, "confirmed": &confirmed, "back": &back} {
		if *to, err = isOn(r.PostForm, name); err != nil {
			return err
		}
	}
	if confirmed && !r.PostForm.Has("exact") { // the new payload would be empty
		return inputError{errors.New("\"confirmed\" needs \"exact\": send the new payload in base64, or \"\" for an empty one")}
	}
	change := c.newEdited(r.PostForm, &body)
	why, noReason := newWhy(r.PostForm)
	change.problem = errors.Join(change.problem, noReason)
	if body.Problem = sentence(change.problem); body.Problem != "" {
		c.writePage(w, r, http.StatusBadRequest, page{
			Title: fmt.Sprintf("Edit entry %d", id), Template: "edit", Section: "quarantine", Body: body,
		})
		return nil
	}
	if !confirmed || back {
		if !back {
			body.review(old, change)
		}
		return c.showEdit(w, r, body)
	}
	newID, err := c.quarantine.Edit(r.Context(), operate.Act{Actor: actor, Why: why}, id, func(msg *message.Message) error {
		msg.Payload, msg.Metadata = change.payload, maps.Clone(change.metadata)
		return nil
	}, quarantine.EditOptions{KeepQuarantined: body.Keep})
	if err != nil {
		return err
	}
	c.config.Logger.Info("Console change has ended", map[string]any{"change": "Edit", "actor": actor, "entry": id, "new_entry": newID})
	redirect(w, link("entry", "id", newID))
	return nil
}

func sentence(err error) string {
	if err == nil {
		return ""
	}
	return upper(err.Error()) + "."
}

func (p *editPage) review(old quarantine.Entry, change edited) {
	p.Review, p.Exact = true, base64.StdEncoding.EncodeToString(change.payload)
	p.OldSize, p.NewSize = len(old.Message.Payload), len(change.payload)
	before, after := asText(old.Message.Payload, p.Hex), asText(change.payload, p.Hex)
	p.PayloadDiff = diff(before, after)
	was, _ := metadataText(old.Message.Metadata)
	now, _ := metadataText(change.metadata)
	p.MetadataDiff = diff(was, now)
	p.Metadata = now
	p.NotJSON = json.Valid(old.Message.Payload) && !json.Valid(change.payload)
	p.Unchanged = bytes.Equal(old.Message.Payload, change.payload) && maps.Equal(old.Message.Metadata, change.metadata)
}

package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// The API consists of pages: below api/, a page is sent as JSON, and a form is received as JSON. So
// it can do what the pages can, with the same checks.

// endpoint is a page of the API.
type endpoint struct {
	Name, Summary string
	Query         []string // names of the values of GET; nil without GET
	Form          []string // names of the values of POST; nil without POST
	Shows         any      // Body of the page
}

// values selects what a change changes, and says how.
var values = []string{
	"do", "id", "all", "consumer", "topic", "key", "message", "tenant", "reason", "type", "group", "state", "from", "to",
	"force", "rate", "canary", "window", "stop",
}

// with returns the filters of a list, and more.
func with(list string, more ...string) []string { return slices.Concat(filters[list], more) }

var endpoints = []endpoint{
	{Name: "overview", Summary: "What needs attention, and counts", Query: []string{}, Shows: overview{}},
	{Name: "forwarders", Summary: "Forwarders and their slots", Query: []string{}, Shows: forwardersPage{}},
	{Name: "consumers", Summary: "Consumers with their backlogs, pauses and limits", Query: []string{}, Shows: consumersPage{}},
	{Name: "outbox", Summary: "Messages of the outbox", Query: with("outbox", "after", "limit"), Shows: outboxPage{}},
	{Name: "message", Summary: "A message of the outbox", Query: []string{"id", "view"}, Shows: messagePage{}},
	{Name: "dead", Summary: "Dead letters and their causes", Query: with("dead", "after", "aftergroup"), Shows: deadPage{}},
	{Name: "letter", Summary: "A dead letter", Query: []string{"id", "view"}, Shows: letterPage{}},
	{Name: "sent", Summary: "The sent log", Query: with("sent", "after"), Shows: sentPage{}},
	{Name: "copy", Summary: "A message of the sent log", Query: []string{"id", "view"}, Shows: sentMessagePage{}},
	{Name: "parked", Summary: "Parked messages", Query: with("parked", "after", "limit"), Shows: parkedPage{}},
	{Name: "parked-message", Summary: "A parked message", Query: []string{"id", "view"}, Shows: parkedMessagePage{}},
	{
		Name: "quarantine", Summary: "The quarantine and its failure groups",
		Query: with("quarantine", "after", "aftergroup"), Shows: quarantinePage{},
	},
	{Name: "entry", Summary: "An entry of the quarantine", Query: []string{"id", "view"}, Shows: entryPage{}},
	{
		Name: "edit", Summary: "An entry as it can be edited; an edit of it, which needs \"confirmed\", and otherwise shows the differences",
		Query: []string{"id", "as"}, Form: []string{"id", "exact", "metadata", "keep", "why", "confirmed"}, Shows: editPage{},
	},
	{Name: "note", Summary: "A note on a failure group", Form: []string{"group", "note"}},
	{Name: "payload", Summary: "The payload of a message, as it is", Query: []string{"of", "id"}},
	{
		Name: "change", Summary: "A dry run of a change; the change, of \"limit\" messages at most",
		Query: values, Form: slices.Concat(values, []string{"limit", "why"}), Shows: changePage{},
	},
	{Name: "job", Summary: "A change that runs, or has run, in this process", Query: []string{"id"}, Shows: jobPage{}},
	{Name: "stop", Summary: "Stops a job or a replay", Form: []string{"job", "replay", "why"}},
	{Name: "replays", Summary: "Replays, and the latest changes of this process", Query: []string{"before"}, Shows: replaysPage{}},
	{Name: "replay", Summary: "A replay; POST resumes it", Query: []string{"id"}, Form: []string{"id", "why"}, Shows: replayPage{}},
	{
		Name: "trace", Summary: "The history of messages",
		Query: []string{"message", "type", "aggregate", "tenant", "causes"}, Shows: tracePage{},
	},
	{Name: "audit", Summary: "The audit log", Query: with("audit", "actor", "action", "replay", "after"), Shows: auditPage{}},
	{Name: "reconcile", Summary: "Reports of reconciliation", Query: []string{"before"}, Shows: reconcilePage{}},
	{Name: "report", Summary: "A report of reconciliation", Query: []string{"id"}, Shows: reportPage{}},
}

// inAPI reports whether a request is for the API, wherever the console is mounted.
func inAPI(r *http.Request) bool {
	folder, _ := cutLast(r.URL.Path)
	return folder == "api" || strings.HasSuffix(folder, "/api")
}

func cutLast(path string) (folder, name string) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(0, at)], path[at+1:]
}

var errNotJSON error = inputError{errors.New("send the values as a JSON object, with the header Content-Type: application/json")}

// endpoint returns the page of a request to the API, and turns its JSON into a form. A value that
// the page does not know is an error: it could be a filter, without which a change selects more.
func (c *Console) endpoint(r *http.Request, name string) (route, error) {
	at := slices.IndexFunc(endpoints, func(e endpoint) bool { return e.Name == name })
	if at < 0 {
		return route{}, errNoPage
	}
	e := endpoints[at]
	page := c.routes[name]
	if name == "overview" {
		page = c.routes[""]
	}
	if e.Query == nil {
		page.get = nil
	}
	known, given := e.Query, r.URL.Query()
	if r.Method == http.MethodPost && page.post != nil {
		if len(given) > 0 {
			return route{}, inputError{errors.New("send the values in the body")}
		}
		form, err := formOf(r)
		if err != nil {
			return route{}, err
		}
		r.PostForm, r.Form = form, form
		known, given = e.Form, form
	}
	for name := range given {
		if !slices.Contains(known, strings.TrimSuffix(name, quoted)) {
			return route{}, inputError{fmt.Errorf("%q is no value here: use %s", name, strings.Join(known, ", "))}
		}
	}
	return page, nil
}

func formOf(r *http.Request) (url.Values, error) {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, errNotJSON
	}
	decoder := json.NewDecoder(r.Body)
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, err
		}
		return nil, errNotJSON
	}
	form := url.Values{}
	for name, value := range object {
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		for _, one := range list {
			switch v := one.(type) {
			case string:
				form.Add(name, v)
			case json.Number:
				form.Add(name, v.String())
			case bool:
				if v {
					form.Add(name, "1")
				}
			case map[string]any:
				text, err := json.Marshal(v)
				if err != nil {
					return nil, errNotJSON
				}
				form.Add(name, string(text))
			case nil:
			default:
				return nil, errNotJSON
			}
		}
		if !form.Has(name) && value != nil && value != false {
			form.Add(name, "")
		}
	}
	return form, nil
}

// writeJSON sends the body of a page.
func (c *Console) writeJSON(w http.ResponseWriter, status int, body any) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	if err := encoder.Encode(plain(reflect.ValueOf(body))); err != nil {
		c.config.Logger.Error("Console page cannot be rendered", err, watermill.LogFields{"type": fmt.Sprintf("%T", body)})
		http.Error(w, `{"headline":"The page failed","details":"The log of the service says why."}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// plain returns a value as maps and slices, for encoding/json. A struct becomes an object with the
// members of [members].
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		if err, ok := reflect.TypeAssert[error](v); ok {
			return err.Error()
		}
		return plain(v.Elem())
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i))
		}
		return list
	case reflect.Map:
		object := map[string]any{}
		for key, value := range v.Seq2() {
			object[fmt.Sprint(key)] = plain(value)
		}
		return object
	case reflect.Struct:
		return plainStruct(v)
	default:
		if took, ok := reflect.TypeAssert[time.Duration](v); ok {
			return took.Seconds()
		}
		return v.Interface()
	}
}

func plainStruct(v reflect.Value) any {
	if at, ok := reflect.TypeAssert[time.Time](v); ok {
		if at.IsZero() {
			return nil
		}
		return at.UTC().Format(time.RFC3339Nano)
	}
	object := map[string]any{}
	for _, m := range members(v.Type()) {
		object[m.Name] = plain(v.FieldByIndex(m.Index))
	}
	return object
}

// member is a member of a JSON object.
type member struct {
	Name  string
	Type  reflect.Type
	Index []int
}

// members returns the members of the object of a struct: its exported fields, also embedded ones,
// with names like ordering_key. It leaves out fields with the tag api:"-", which are for HTML, and
// payloads and metadata, which people may see only through [content].
func members(t reflect.Type) (all []member) {
	for _, field := range reflect.VisibleFields(t) {
		if !field.IsExported() || field.Anonymous && field.Type.Kind() == reflect.Struct || hiddenInAPI(t, field) {
			continue
		}
		name := snake(field.Name)
		if field.Type == reflect.TypeFor[time.Duration]() {
			name += "_seconds"
		}
		all = append(all, member{name, field.Type, field.Index})
	}
	return all
}

func hiddenInAPI(t reflect.Type, field reflect.StructField) bool {
	switch field.Type {
	case reflect.TypeFor[[]byte](), reflect.TypeFor[message.Metadata](), reflect.TypeFor[map[string]string](),
		reflect.TypeFor[*message.Message](), reflect.TypeFor[selection]():
		return true
	}
	for i := range field.Index { // an embedded struct with the tag is left out as a whole
		if t.FieldByIndex(field.Index[:i+1]).Tag.Get("api") == "-" {
			return true
		}
	}
	return field.Type.Kind() == reflect.Func
}

// snake returns message_id for MessageID.
func snake(name string) string {
	var b strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		afterSmall := i > 0 && !unicode.IsUpper(letters[i-1])
		beforeSmall := i > 0 && i+1 < len(letters) && unicode.IsLower(letters[i+1]) && name[i:] != "Ds"
		if unicode.IsUpper(r) && (afterSmall || beforeSmall) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// object is an object of JSON.
type object = map[string]any

// integers are the values that are numbers. All others are texts, also times and switches.
var integers = []string{"after", "before", "canary", "id", "limit", "rate", "replay", "window"}

// needed are the values without which a page cannot be read or a change not be made.
var needed = map[string][]string{
	"message": {"id"}, "letter": {"id"}, "copy": {"id"}, "parked-message": {"id"}, "entry": {"id"}, "edit": {"id"}, "payload": {"of", "id"},
	"job": {"id"}, "replay": {"id"}, "report": {"id"}, "change": {"do"}, "note": {"group"},
}

// OpenAPI returns the description of the API, made from its endpoints and from the types of their
// pages.
func (c *Console) OpenAPI() []byte {
	d := description{components: object{}}
	problems := object{"description": "The request is invalid, not allowed or not possible now.", "content": d.content(problem{})}
	paths := object{}
	for _, e := range endpoints {
		item := object{}
		if e.Query != nil {
			item["get"] = object{
				"summary": e.Summary, "operationId": "get-" + e.Name, "parameters": c.parameters(e),
				"responses": object{"200": d.response(e), "default": problems},
			}
		}
		if e.Form != nil {
			properties := object{}
			for _, name := range e.Form {
				properties[name] = c.value(e, name)
			}
			required := needed[e.Name]
			if e.Name == "change" {
				required = []string{"do", "limit", "why"}
			}
			item["post"] = object{
				"summary": e.Summary, "operationId": "post-" + e.Name,
				"requestBody": object{"required": true, "content": object{"application/json": object{"schema": object{
					"type": "object", "properties": properties, "required": append([]string{}, required...), "additionalProperties": false,
				}}}},
				"responses": object{
					"303":     object{"description": "Done, or begun. Location is the page of the API that shows the result."},
					"default": problems,
				},
			}
		}
		paths["/api/"+e.Name] = item
	}
	return document(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Operators' API of watermill-once", "version": "1",
			"description": "The pages of the console as JSON. The paths are relative to the path of the console. " +
				"Config.Authorize identifies the caller. It can read any header, such as Authorization.",
			"license": object{"name": "MIT", "identifier": "MIT"},
		},
		"servers":    []any{object{"url": "/ops/once"}},
		"security":   []any{object{"bearer": []any{}}, object{}},
		"paths":      paths,
		"components": object{"schemas": d.components, "securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer"}}},
	}, 3)
}

// document returns o with one line for each member down to the given depth.
func document(o object, depth int) []byte {
	var b bytes.Buffer
	b.WriteString("{")
	for i, name := range slices.Sorted(maps.Keys(o)) {
		text, err := json.Marshal(o[name])
		if err != nil {
			panic(err)
		}
		if inner, ok := o[name].(object); ok && depth > 1 && len(text) > 400 {
			text = document(inner, depth-1)
		}
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n%q: %s", name, text)
	}
	b.WriteString("\n}")
	return b.Bytes()
}

func (c *Console) parameters(e endpoint) (all []any) {
	all = []any{}
	for _, name := range e.Query {
		all = append(all, object{
			"name": name, "in": "query", "required": slices.Contains(needed[e.Name], name), "schema": c.value(e, name),
		})
	}
	return all
}

// value returns the schema of a value.
func (c *Console) value(e endpoint, name string) object {
	_, list := filters[e.Name]
	switch {
	case name == "do":
		return object{"type": "string", "enum": slices.Sorted(maps.Keys(c.acts))}
	case name == "id" && (list || e.Name == "change"):
		return object{"type": "array", "items": object{"type": "integer"}, "maxItems": mostIDs}
	case name == "id" && e.Name == "job":
		return object{"type": "string"}
	case name == "metadata":
		return object{"type": "object", "additionalProperties": object{"type": "string"}}
	case name == "exact":
		return object{"type": "string", "contentEncoding": "base64", "description": "the new payload; needed with \"confirmed\""}
	case name == "why":
		return object{"type": "string", "maxLength": longestWhy, "description": "the reason, for the audit log"}
	case name == "limit" && e.Name == "change":
		return object{"type": "integer", "description": "total of the dry run: the change affects no more messages"}
	case slices.Contains(integers, name):
		return object{"type": "integer"}
	case slices.Contains([]string{"all", "causes", "confirmed", "force", "keep", "stop"}, name):
		return object{"type": "boolean"}
	case name == "from", name == "to":
		return object{"type": "string", "format": "date-time"}
	}
	return object{"type": "string"}
}

type description struct{ components object }

func (d description) response(e endpoint) object {
	if e.Shows == nil {
		return object{"description": e.Summary, "content": object{"application/octet-stream": object{}}}
	}
	return object{"description": e.Summary, "content": d.content(e.Shows)}
}

func (d description) content(body any) object {
	return object{"application/json": object{"schema": d.schema(reflect.TypeOf(body))}}
}

func (d description) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": []string{"string", "null"}, "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "number"}
	case t == reflect.TypeFor[error]():
		return object{"type": []string{"string", "null"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case reflect.Pointer:
		return object{"anyOf": []any{d.schema(t.Elem()), object{"type": "null"}}}
	case reflect.Struct:
		name := t.String()
		if d.components[name] == nil {
			properties, required := object{}, []string{}
			d.components[name] = object{} // ends the recursion of a type that contains itself
			for _, m := range members(t) {
				properties[m.Name] = d.schema(m.Type)
				required = append(required, m.Name)
			}
			slices.Sort(required)
			d.components[name] = object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
		}
		return object{"$ref": "#/components/schemas/" + name}
	default:
		panic(fmt.Sprintf("a page of the API has a field of type %v", t))
	}
}

// Fits returns how a response differs from the description of its endpoint, or "".
func (c *Console) Fits(method, name string, response any) string {
	var document object
	if err := json.Unmarshal(c.OpenAPI(), &document); err != nil {
		return err.Error()
	}
	at := func(from any, keys ...string) any {
		for _, key := range keys {
			found, _ := from.(object)
			from = found[key]
		}
		return from
	}
	schema := at(document, "paths", "/api/"+name, strings.ToLower(method), "responses", "200", "content", "application/json", "schema")
	var differ func(where string, schema, value any) string
	differ = func(where string, schema, value any) string {
		if ref, ok := at(schema, "$ref").(string); ok {
			schema = at(document, "components", "schemas", strings.TrimPrefix(ref, "#/components/schemas/"))
		}
		if choices, ok := at(schema, "anyOf").([]any); ok {
			if value == nil {
				return ""
			}
			return differ(where, choices[0], value)
		}
		types, ok := at(schema, "type").([]any)
		if !ok {
			types = []any{at(schema, "type")}
		}
		got := map[reflect.Kind]string{
			reflect.Bool: "boolean", reflect.String: "string", reflect.Float64: "number", reflect.Slice: "array", reflect.Map: "object",
			reflect.Invalid: "null",
		}[reflect.ValueOf(value).Kind()]
		if !slices.Contains(types, any(got)) && (got != "number" || !slices.Contains(types, any("integer"))) {
			return fmt.Sprintf("%s is %v, want %v", where, value, types)
		}
		switch v := value.(type) {
		case []any:
			for i, item := range v {
				if d := differ(fmt.Sprintf("%s[%d]", where, i), at(schema, "items"), item); d != "" {
					return d
				}
			}
		case object:
			properties, _ := at(schema, "properties").(object)
			for key, member := range v {
				of := at(schema, "additionalProperties")
				if properties != nil {
					of = properties[key]
				}
				if of == nil {
					return fmt.Sprintf("%s has the member %s", where, key)
				}
				if d := differ(where+"."+key, of, member); d != "" {
					return d
				}
			}
			for key := range properties {
				if _, ok := v[key]; !ok {
					return fmt.Sprintf("%s has no member %s", where, key)
				}
			}
		}
		return ""
	}
	if schema == nil {
		return "the API has no " + method + " " + name
	}
	return differ(name, schema, response)
}

// Endpoints returns the pages of the API that can be read, and those that accept values.
func (c *Console) Endpoints() (read, change []string) {
	for _, e := range endpoints {
		page := c.routes[e.Name]
		if e.Name == "overview" {
			page = c.routes[""]
		}
		if (e.Query != nil) != (page.get != nil) && e.Name != "edit" || (e.Form != nil) != (page.post != nil) {
			panic(fmt.Sprintf("%s: the API and the pages do not have the same methods", e.Name))
		}
		if e.Query != nil {
			read = append(read, e.Name)
		}
		if e.Form != nil {
			change = append(change, e.Name)
		}
	}
	return read, change
}

package cloudevents

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
)

const structuredType = "application/cloudevents+json"

// received is a CloudEvent in a message.
type received struct {
	msg    *message.Message
	fields map[string]json.RawMessage // of a structured event, otherwise nil
}

func read(msg *message.Message) (received, error) {
	contentType := meta.EventContentType(msg.Metadata)
	switch {
	case meta.Structured(contentType):
		r := received{msg: msg}
		if err := json.Unmarshal(msg.Payload, &r.fields); err != nil {
			return r, fmt.Errorf("the structured event is no JSON object: %w", err)
		}
		return r, nil
	case meta.EventAttribute(msg.Metadata, "specversion") != "":
		return received{msg: msg}, nil
	case contentType != "":
		return received{}, fmt.Errorf("events of type %q are not supported: send binary events, or %s", contentType, structuredType)
	default:
		return received{}, errors.New("the message is no CloudEvent: it has neither the attribute specversion nor the content-type " +
			structuredType)
	}
}

func (r received) attribute(name string) string {
	if r.fields == nil {
		return meta.EventAttribute(r.msg.Metadata, name)
	}
	return text(r.fields[name])
}

// text returns a JSON string unquoted, and any other value as it is.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func (r received) data() (data []byte, contentType string, err error) {
	if r.fields == nil {
		return r.msg.Payload, meta.EventContentType(r.msg.Metadata), nil
	}
	contentType = r.attribute("datacontenttype")
	if encoded, ok := r.fields["data_base64"]; ok {
		data, err = base64.StdEncoding.DecodeString(text(encoded))
		if err != nil {
			return nil, "", fmt.Errorf("data_base64: %w", err)
		}
		return data, contentType, nil
	}
	if isJSON(contentType) {
		return r.fields["data"], contentType, nil
	}
	return []byte(text(r.fields["data"])), contentType, nil
}

// encode returns a structured event.
func encode(attributes map[string]string, data []byte) ([]byte, error) {
	fields := make(map[string]any, len(attributes)+1)
	for name, value := range attributes {
		fields[name] = value
	}
	if isJSON(attributes["datacontenttype"]) {
		fields["data"] = json.RawMessage(data)
	} else {
		fields["data_base64"] = data
	}
	return json.Marshal(fields)
}

func isJSON(contentType string) bool {
	name := mediaType(contentType)
	return name == "" || strings.HasSuffix(name, "/json") || strings.HasSuffix(name, "+json")
}

func mediaType(contentType string) string {
	name, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(name))
}

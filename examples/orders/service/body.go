package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"
)

// readJSON reads the body of a request, up to maxBody bytes.
func readJSON(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, &problem{Status: http.StatusUnsupportedMediaType, Detail: "Content-Type must be application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &problem{
			Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the body must be at most %d bytes long", maxBody),
		}
	case err != nil:
		return nil, &problem{Status: http.StatusBadRequest, Detail: "the body could not be read to its end"}
	case !utf8.Valid(body): // encoding/json would replace the invalid bytes
		return nil, &problem{Status: http.StatusBadRequest, Detail: "the body is not valid UTF-8"}
	}
	return body, nil
}

// decodeJSON decodes one JSON value. It refuses unknown fields, because most of them
// are typing mistakes.
func decodeJSON(body []byte, value any) *problem {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return &problem{Status: http.StatusBadRequest, Detail: "the body " + jsonProblem(err)}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return &problem{Status: http.StatusBadRequest, Detail: "the body must be one JSON value"}
	}
	return nil
}

// jsonProblem describes an error of encoding/json in words that a client understands.
func jsonProblem(err error) string {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, io.EOF):
		return "is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "ends too early"
	case errors.As(err, &syntax):
		return fmt.Sprintf("is not JSON: %v at byte %d", syntax, syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return "must be a JSON object"
	case errors.As(err, &kind):
		return fmt.Sprintf("cannot have a %s as %q", kind.Value, kind.Field)
	}
	return "has an " + strings.TrimPrefix(err.Error(), "json: ")
}

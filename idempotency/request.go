package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxKey = 255

// keyOf returns the key of a request, or "", and a problem if it is not valid. By the draft, a key
// is a string of RFC 8941, in quotes, but many clients send it without.
func keyOf(r *http.Request) (key, problem string) {
	values := r.Header.Values(Header)
	switch {
	case len(values) == 0:
		return "", ""
	case len(values) > 1:
		return "", "the request has " + strconv.Itoa(len(values)) + " keys"
	}
	key = strings.Trim(values[0], " \t")
	if quoted, ok := strings.CutPrefix(key, `"`); ok {
		if key, problem = unquote(quoted); problem != "" {
			return "", problem
		}
	}
	switch {
	case key == "":
		return "", "it is empty"
	case len(key) > maxKey:
		return "", fmt.Sprintf("it has %d characters, the limit is %d", len(key), maxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return "", "it has characters other than printable ASCII"
	}
	return key, ""
}

// unquote returns the string after an opening quote, as in RFC 8941, section 3.3.3. The draft
// defines no parameters, so they are ignored.
func unquote(quoted string) (value, problem string) {
	var b strings.Builder
	for i := 0; i < len(quoted); i++ {
		switch quoted[i] {
		case '\\':
			i++
			if i == len(quoted) || quoted[i] != '"' && quoted[i] != '\\' {
				return "", `a backslash is followed by neither a quote nor a backslash`
			}
			b.WriteByte(quoted[i])
		case '"':
			if rest := quoted[i+1:]; rest != "" && rest[0] != ';' {
				return "", "something follows its closing quote"
			}
			return b.String(), ""
		default:
			b.WriteByte(quoted[i])
		}
	}
	return "", "its closing quote is missing"
}

type request struct {
	client, key string
	digest      [sha256.Size]byte
}

// errChanged means that the body is not the one that the client has sent, and cannot be compared.
var errChanged = errors.New("a middleware has read or changed the body of the request: put the middleware inside the handler of " +
	"package idempotency, or let it put back the same bytes as r.Body")

func (k *Keys) readBody(w http.ResponseWriter, r *http.Request) (body []byte, err error) {
	if r.Body != nil {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, k.config.MaxBody))
	}
	if errors.Is(err, http.ErrBodyReadAfterClose) {
		err = errChanged
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, err
}

// changed reports whether body is not what the client has sent. Without a length, it knows this
// only if nothing is left, and then reports an empty body, too.
func changed(r *http.Request, body []byte) bool {
	if r.ContentLength < 0 {
		return len(body) == 0 || r.MultipartForm != nil
	}
	return r.ContentLength > 0 && int64(len(body)) != r.ContentLength
}

// meaning are the headers that change what a method or a body means.
var meaning = []string{
	"Content-Type", "Content-Encoding", "Content-Range", "X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
}

// digestOf uses the path as the client has sent it and as the handler sees it: http.StripPrefix and
// routers change the second, and a program that splits a request into several keeps the first.
func digestOf(r *http.Request, body []byte) (digest [sha256.Size]byte) {
	sum := sha256.New()
	add(sum, r.Method, target(r), r.URL.Path, r.URL.RawQuery)
	for _, name := range meaning {
		add(sum, r.Header.Values(name)...)
	}
	sum.Write(body)
	return [sha256.Size]byte(sum.Sum(nil))
}

// Other values never add the same bytes.
func add(sum hash.Hash, values ...string) {
	fmt.Fprintf(sum, "%d;", len(values))
	for _, value := range values {
		fmt.Fprintf(sum, "%d:%s", len(value), value)
	}
}

// target returns path and query as sent, without a scheme and a host, which may differ.
func target(r *http.Request) string {
	sent := r.RequestURI
	if sent == "" { // the request was made in this process
		return r.URL.RequestURI()
	}
	if absolute, err := url.Parse(sent); err == nil && absolute.Host != "" && !strings.HasPrefix(sent, "/") {
		return absolute.RequestURI()
	}
	return sent
}

// maxClient is in bytes. An index of PostgreSQL takes no longer ids.
const maxClient = 1024

func unusable(client string) string {
	switch {
	case len(client) > maxClient:
		return fmt.Sprintf("it has %d bytes, the limit is %d", len(client), maxClient)
	case !utf8.ValidString(client):
		return "it is not valid UTF-8"
	case strings.ContainsRune(client, 0):
		return "it has a zero byte"
	}
	return ""
}

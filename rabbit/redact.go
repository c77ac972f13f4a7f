package rabbit

import (
	"errors"
	"regexp"
)

// userinfo matches the text from "//" to the last "@" of a word. If a URL without
// credentials has an "@" in its path, userinfo also matches a part of the path, which
// does no harm.
var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact removes the credentials in URLs from the text of an error. Every error of
// another package must be redacted before it is logged or returned. An error that
// contains credentials is replaced by an error with the redacted text, because
// unwrapping the original error would show the credentials.
func redact(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if safe := redactText(text); safe != text {
		return errors.New(safe)
	}
	return err
}

func redactText(text string) string {
	return userinfo.ReplaceAllString(text, "//***@")
}

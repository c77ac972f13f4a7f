package rabbit

import (
	"errors"
	"regexp"
)

// userinfo matches from "//" to the last "@" of a word. It also removes the path
// of a URL without credentials if the path has an "@", which does no harm.
var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact removes credentials in URLs from the text of an error. Every error of
// another package must be redacted before it is logged or returned. An error
// with credentials is replaced, because unwrapping it would show them.
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

package preview

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// objects are the objects of a file, as JSON: of YAML documents, of JSON one after the other, and of lists.
func objects(file string, data []byte, failed func(ReadError)) iter.Seq2[Place, []byte] {
	return func(yield func(Place, []byte) bool) {
		data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // A byte order mark.
		if !utf8.Valid(data) || bytes.ContainsRune(data, 0) {
			failed(ReadError{Place{file, 1, 1}, "is not UTF-8; save it as UTF-8 (the > of an old PowerShell writes UTF-16)"})
			return
		}
		for place, document := range documents(data) {
			place.File = file
			values, err := toJSON(document)
			if err != nil {
				failed(readError(place, document, err))
				continue
			}
			for _, value := range values {
				items, err := flatten(value)
				if err != nil {
					failed(ReadError{place, err.Error()})
				}
				for _, item := range items {
					if !yield(place, item) {
						return
					}
				}
			}
		}
	}
}

// documents splits YAML at its separators, for a parser that reads one document, and knows lines, which apimachinery's
// reader does not. Documents without content do not count, and what stands above the content is left out.
func documents(data []byte) iter.Seq2[Place, []byte] {
	return func(yield func(Place, []byte) bool) {
		var document []byte
		number, first, line := 0, 0, 0
		flush := func() bool {
			if first == 0 {
				return true
			}
			number++
			ok := yield(Place{Document: number, Line: first}, document)
			document, first = nil, 0
			return ok
		}
		for text := range bytes.Lines(data) {
			line++
			if rest, ok := bytes.CutPrefix(text, []byte("---")); ok && separates(rest) {
				if !flush() {
					return
				}
				text = rest // A document may begin right here.
			}
			if first == 0 {
				if content := bytes.TrimSpace(text); len(content) == 0 || content[0] == '#' || content[0] == '%' {
					continue
				}
				first = line
			}
			document = append(document, text...)
		}
		flush()
	}
}

// separates says whether dashes with this behind them are a separator. A comment may follow at once, says kubectl, though not
// YAML; charts rely on it.
func separates(rest []byte) bool {
	return len(rest) == 0 || rest[0] == '#' || unicode.IsSpace(rune(rest[0]))
}

// toJSON reads one YAML document, or like kubectl, JSON objects one after the other.
func toJSON(document []byte) ([]json.RawMessage, error) {
	if utilyaml.IsJSONBuffer(document) {
		var values []json.RawMessage
		decoder := json.NewDecoder(bytes.NewReader(document))
		for {
			var value json.RawMessage
			err := decoder.Decode(&value)
			if errors.Is(err, io.EOF) {
				return values, nil
			}
			if err != nil {
				break // YAML may begin with a brace, too, and its errors have lines.
			}
			values = append(values, value)
		}
	}
	value, err := yaml.YAMLToJSON(document)
	return []json.RawMessage{value}, err
}

// flatten takes lists apart. The items of a typed one, such as a PodList, say no kind themselves.
func flatten(value json.RawMessage) ([]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(value, &fields); err != nil {
		return nil, errors.New("is no object; a manifest has the fields apiVersion, kind and metadata")
	}
	if len(fields) == 0 {
		return nil, nil
	}
	var kind string
	_ = json.Unmarshal(fields["kind"], &kind) // Whoever reads the object will say so if it is none.
	var items []json.RawMessage
	itemKind, list := strings.CutSuffix(kind, "List")
	if list {
		_ = json.Unmarshal(fields["items"], &items) // Others may have such a kind, and anything as items.
	}
	if items == nil {
		return []json.RawMessage{value}, nil
	}
	var all []json.RawMessage
	var errs []error
	for i, item := range items {
		var object map[string]json.RawMessage
		if json.Unmarshal(item, &object) == nil && object != nil && object["kind"] == nil && itemKind != "" {
			object["kind"], object["apiVersion"] = json.RawMessage(strconv.Quote(itemKind)), fields["apiVersion"]
			if encoded, err := json.Marshal(object); err == nil {
				item = encoded
			}
		}
		nested, err := flatten(item)
		if err != nil {
			errs = append(errs, fmt.Errorf("items[%d]: %w", i, err))
		}
		all = append(all, nested...)
	}
	return all, errors.Join(errs...)
}

var yamlLine = regexp.MustCompile(`\bline (\d+): `)

// readError gives a parser's error the line in the file; the parser has seen one document only.
func readError(place Place, document []byte, err error) ReadError {
	message := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: ")
	if match := yamlLine.FindStringSubmatch(message); match != nil {
		line, _ := strconv.Atoi(match[1]) // The expression lets digits through only.
		place.Line += line - 1
		message = strings.Replace(message, match[0], "", 1)
	}
	message = "is no YAML: " + message
	if bytes.Contains(document, []byte("{{")) {
		message += "; it looks like a template: render it first, such as with helm template"
	}
	return ReadError{place, message}
}

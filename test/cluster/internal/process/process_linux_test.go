package process

import "testing"

func TestParseStatCopesWithAnyProgramName(t *testing.T) {
	line := "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 987654 1 2"
	if s, err := parseStat(line); s != (stat{state: "S", threads: 9, start: 987654}) || err != nil {
		t.Errorf("got %+v, %v", s, err)
	}
}

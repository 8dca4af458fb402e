package process

import "testing"

func TestParseStatCopesWithAnyProgramName(t *testing.T) {
	stat := "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2"
	if state, start, err := parseStat(stat); state != "S" || start != 987654 || err != nil {
		t.Errorf("got %q, %d, %v", state, start, err)
	}
}

package plan

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var plainNumber = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$`)

// exactly is what people mean by an amount, without Kubernetes' parser; nil if it is none.
func exactly(text string) *big.Rat {
	if len(text) > maxAmount {
		return nil
	}
	number, unit := strings.TrimRight(text, "numkKMGTPi"), big.NewRat(1, 1)
	switch suffix := text[len(number):]; suffix {
	case "":
	case "n":
		unit.SetFrac64(1, 1e9)
	case "u":
		unit.SetFrac64(1, 1e6)
	case "m":
		unit.SetFrac64(1, 1e3)
	default:
		letter, binary := strings.CutSuffix(suffix, "i")
		power := strings.Index("kMGTP", letter) + 1
		base := int64(1000)
		if binary {
			base, power = 1024, strings.Index("KMGTP", letter)+1
		}
		if len(letter) != 1 || power == 0 {
			return nil
		}
		for range power {
			unit.Mul(unit, big.NewRat(base, 1))
		}
	}
	if !plainNumber.MatchString(number) {
		return nil
	}
	amount, ok := new(big.Rat).SetString(number)
	if !ok {
		return nil
	}
	return amount.Mul(amount, unit)
}

// up is the least whole number that is no less.
func up(r *big.Rat) int64 {
	quotient, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient.Int64()
}

// FuzzAmount computes anew what amounts, percentages and factors come to.
func FuzzAmount(f *testing.F) {
	for _, text := range []string{"50m", "0.05", "1Gi", "1E", "12.5", "-1", "+1.", "1Ki", "1n", "0.0000000001", "10001", "1E10000000", "999999999999999999999999", "\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		exact := exactly(text)
		between := func(least, most int64) bool {
			return exact != nil && exact.Cmp(big.NewRat(least, 1)) >= 0 && exact.Cmp(big.NewRat(most, 1)) <= 0
		}
		times := func(factor int64) *big.Rat { return new(big.Rat).Mul(exact, big.NewRat(factor, 1)) }

		cpu, err := amount(text).cpu()
		if valid := between(0, 10_000) && exact.Sign() > 0; valid != (err == nil) || valid && int64(cpu) != up(times(1000)) {
			t.Errorf("%q is the CPU %d, %v", text, cpu, err)
		}
		memory, err := amount(text).memory()
		if valid := between(1, 1<<50) && exact.IsInt(); valid != (err == nil) || valid && int64(memory) != up(exact) {
			t.Errorf("%q is the memory %d, %v", text, memory, err)
		}
		if plain := strings.Trim(text, "0123456789.") == ""; !plain {
			exact = nil
		}
		share, err := percents().parse(text)
		if valid := between(0, 100) && exact.Sign() > 0 && times(1000).IsInt(); valid != (err == nil) || valid && share != up(times(1000)) {
			t.Errorf("%q%% is %d, %v", text, share, err)
		}
		share, err = factors().parse(text)
		if valid := between(1, 1000) && times(1000).IsInt(); valid != (err == nil) || valid && share != up(times(100_000)) {
			t.Errorf("%qx is %d, %v", text, share, err)
		}

		// A number may stand in JSON with quotes or without.
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var a amount
		if err := json.Unmarshal(encoded, &a); err != nil || utf8.ValidString(text) && string(a) != text {
			t.Errorf("%q is read as %q, %v", text, a, err)
		}
		bare := strings.TrimSpace(text)
		a = ""
		if err := json.Unmarshal([]byte(bare), &a); err == nil && bare[0] != '"' && bare != "null" && string(a) != bare {
			t.Errorf("%s is read as %q", bare, a)
		}
	})
}

"""What every engine does with segments at request time: verify, gather, turn, prove."""

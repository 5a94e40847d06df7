"""The rules, a module for each section of the contract, with the programs that their ranks run."""

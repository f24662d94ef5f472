// The link test of a library: its whole archive links against nothing but its declared dependencies.
int main() { return 0; }
